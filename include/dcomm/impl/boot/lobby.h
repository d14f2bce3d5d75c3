/* lobby.h - where newcomers wait for a communicator that grows: the rendezvous of an id, at rank 0.
 * It stays open until the context closes, so that newcomers may come between two grows.
 *
 * Each attempt to create the communicator has a rendezvous of its own, like every creation. Its
 * secret follows from the id's and a nonce. So a failed attempt leaves nothing to the next one. */
#ifndef DCOMMI_LOBBY_H
#define DCOMMI_LOBBY_H

#include "join_file.h"

#define DCOMMI_LOBBY_CLOSE_S 0.5 /* seconds for newcomers to read that nothing grows any more */

typedef struct dcommi_lobby {
    struct dcommi_lobby *next; /* of the context */
    dcomm_id id;
    dcommi_id_parts parts;
    uint8_t key[DCOMMI_RDV_KEY];
    dcommi_rdv_server *server;
    bool filed; /* the id was made for DCOMM_JOIN_FILE */
} dcommi_lobby;

/* ---- open and close ---- */

/* Open the lobby of an id of this process. */
static dcomm_status dcommi_lobby_open(const dcomm_id *id, dcommi_lobby **lobby_p)
{
    dcommi_id_parts parts;
    DCOMMI_TRY(dcommi_id_parse(id, &parts));
    dcommi_lobby *lobby = dcommi_alloc(sizeof *lobby);
    if (lobby == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    lobby->id = *id;
    lobby->parts = parts;
    dcommi_id_key(&parts, lobby->key);
    lobby->server = dcommi_rdv_server_find(lobby->key, parts.port);
    bool used = false;
    if (lobby->server != NULL) {
        pthread_mutex_lock(&dcommi_rdv_lock);
        used = lobby->server->core.size != 0;
        lobby->server->core.lobby = !used;
        pthread_mutex_unlock(&dcommi_rdv_lock);
    }
    if (lobby->server == NULL || used) {
        if (used) {
            dcommi_rdv_server_forget(lobby->server);
        }
        dcommi_free(lobby);
        return dcommi_fail(DCOMM_ERR_INVALID,
                           used ? "the id has served the creation of a communicator; grow takes "
                                  "one of its own"
                                : "the id is not of this process: rank 0 itself must call "
                                  "dcomm_id_create");
    }
    *lobby_p = lobby;
    return DCOMM_OK;
}

/* Return the lobby of an id; of NULL: that of DCOMM_JOIN_FILE, where its id is written. Open it if
 * it is not in the list. The list's owner holds its lock. */
static dcomm_status dcommi_lobby_of(dcommi_lobby **list, const dcomm_id *id, dcommi_lobby **lobby_p)
{
    const char *path = dcommi_env("DCOMM_JOIN_FILE");
    dcommi_lobby *lobby = *list;
    dcomm_id made;
    if (id == NULL && path == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "id is NULL on rank 0, and DCOMM_JOIN_FILE names no file to write an id "
                           "to");
    }
    while (lobby != NULL &&
           (id != NULL ? memcmp(&lobby->id, id, sizeof *id) != 0 : !lobby->filed)) {
        lobby = lobby->next;
    }
    if (lobby == NULL) {
        DCOMMI_TRY(id == NULL ? dcomm_id_create(&made) : DCOMM_OK);
        DCOMMI_TRY(dcommi_lobby_open(id != NULL ? id : &made, &lobby));
        lobby->filed = id == NULL;
        lobby->next = *list;
        *list = lobby;
    }
    *lobby_p = lobby;
    return id == NULL ? dcommi_join_file_write(path, &lobby->id) : DCOMM_OK;
}

static void dcommi_lobbies_close(dcommi_lobby **list)
{
    while (*list != NULL) {
        dcommi_lobby *lobby = *list;
        *list = lobby->next;
        dcommi_rdv_server_retire(lobby->server, DCOMMI_LOBBY_CLOSE_S);
        dcommi_free(lobby);
    }
}

/* ---- attempts ---- */

/* Return how many newcomers wait. */
static int dcommi_lobby_waiting(dcommi_lobby *lobby)
{
    pthread_mutex_lock(&dcommi_rdv_lock);
    const uint32_t n = dcommi_rdv_parked(&lobby->server->core);
    pthread_mutex_unlock(&dcommi_rdv_lock);
    return n < DCOMMI_RDV_SIZE_MAX ? (int)n : DCOMMI_RDV_SIZE_MAX;
}

/* An attempt to create the communicator with newcomers. */
typedef struct dcommi_attempt {
    uint32_t number;
    int newcomers;
    dcomm_id id; /* of its rendezvous, which rank 0's boot adopts */
} dcommi_attempt;

/* End an attempt's rendezvous that no boot has adopted. */
static void dcommi_attempt_forget(const dcomm_id *id)
{
    dcommi_id_parts parts;
    uint8_t key[DCOMMI_RDV_KEY];
    if (dcommi_id_parse(id, &parts) == DCOMM_OK) {
        dcommi_id_key(&parts, key);
        dcommi_rdv_server *server = dcommi_rdv_server_find(key, parts.port);
        if (server != NULL) {
            dcommi_rdv_server_retire(server, 0);
        }
    }
}

/* Begin an attempt of `timeout_s` with up to `most` of the newcomers that wait, who follow `old`
 * ranks. */
static dcomm_status dcommi_attempt_begin(dcommi_lobby *lobby, int old, int most, double timeout_s,
                                         dcommi_attempt *attempt)
{
    dcommi_rdv_invitation invitation = {.timeout_ms = timeout_s < 4e6 ? (uint32_t)(timeout_s * 1000)
                                                                      : UINT32_MAX};
    dcommi_id_parts parts = lobby->parts;
    uint8_t secret[DCOMMI_RDV_TAG], key[DCOMMI_RDV_KEY];
    dcommi_rdv_server *server = NULL;
    DCOMMI_TRY(dcommi_random_bytes(invitation.nonce, sizeof invitation.nonce));
    dcommi_rdv_attempt_secret(lobby->key, invitation.nonce, secret);
    memcpy(parts.secret, secret, sizeof parts.secret);
    dcommi_id_key(&parts, key);
    DCOMMI_TRY(dcommi_rdv_server_start(NULL, 0, key, 0, "", &server));
    parts.port = invitation.port = server->port;
    dcommi_rdv_server_forget(server);
    dcommi_id_format(&parts, &attempt->id);
    pthread_mutex_lock(&dcommi_rdv_lock);
    attempt->newcomers =
        (int)dcommi_rdv_invite(&lobby->server->core, (uint32_t)most, &invitation, (uint32_t)old);
    attempt->number = invitation.attempt;
    dcommi_rdv_server_wake(lobby->server);
    pthread_mutex_unlock(&dcommi_rdv_lock);
    if (attempt->newcomers == 0) {
        dcommi_attempt_forget(&attempt->id);
    }
    return DCOMM_OK;
}

static dcommi_rdv_guests dcommi_attempt_guests(dcommi_lobby *lobby, const dcommi_attempt *attempt)
{
    pthread_mutex_lock(&dcommi_rdv_lock);
    const dcommi_rdv_guests guests = dcommi_rdv_guests_of(&lobby->server->core, attempt->number);
    pthread_mutex_unlock(&dcommi_rdv_lock);
    return guests;
}

/* End an attempt, as dcommi_rdv_end_attempt does. */
static void dcommi_attempt_end(dcommi_lobby *lobby, const dcommi_attempt *attempt, bool succeeded,
                               bool pardoned)
{
    pthread_mutex_lock(&dcommi_rdv_lock);
    dcommi_rdv_end_attempt(&lobby->server->core, attempt->number, succeeded, pardoned,
                           dcommi_now());
    dcommi_rdv_server_wake(lobby->server);
    pthread_mutex_unlock(&dcommi_rdv_lock);
}

#endif

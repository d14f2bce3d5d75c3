/* config.h - sets UCX up: its log, its signal handlers and its options. Translates its status
 * codes. */
#ifndef DCOMMI_UCX_CONFIG_H
#define DCOMMI_UCX_CONFIG_H

#include "../../base/captured.h"
#include "../../base/environment.h"

#include <signal.h>
#include <ucp/api/ucp.h>

static dcomm_status dcommi_ucx_status(ucs_status_t status)
{
    switch (status) {
    case UCS_OK:
        return DCOMM_OK;
    case UCS_INPROGRESS:
        return DCOMM_IN_PROGRESS;
    case UCS_ERR_NO_MEMORY:
        return DCOMM_ERR_NO_MEMORY;
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NOT_IMPLEMENTED:
        return DCOMM_ERR_UNSUPPORTED;
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_REJECTED:
    case UCS_ERR_CANCELED:
        return DCOMM_ERR_PEER;
    default:
        return DCOMM_ERR_TRANSPORT;
    }
}

/* ---- UCX's effects on the whole process ---- */

/* > 0 in calls in which UCX may log errors that we report ourselves. */
static _Thread_local int dcommi_ucx_hush;

/* UCX exports these, but newer versions' headers for them do not compile as C11. */
typedef int (*dcommi_ucx_log_fn)(const char *file, unsigned line, const char *function,
                                 ucs_log_level_t level, const void *component, const char *format,
                                 va_list args);
extern void dcommi_ucx_push_log(dcommi_ucx_log_fn fn) __asm__("ucs_log_push_handler");
extern void dcommi_ucx_drop_signal(int number) __asm__("ucs_debug_disable_signal");

static int __attribute__((format(printf, 6, 0)))
dcommi_ucx_log(const char *file, unsigned line, const char *function, ucs_log_level_t level,
               const void *component, const char *format, va_list args)
{
    (void)component;
    char text[DCOMMI_MESSAGE_MAX - 128];
    int ours = DCOMMI_LOG_INFO;
    if (level <= UCS_LOG_LEVEL_ERROR) {
        ours = DCOMMI_LOG_ERROR;
    } else if (level == UCS_LOG_LEVEL_WARN) {
        ours = DCOMMI_LOG_WARN;
    }
    if (dcommi_ucx_hush > 0) {
        ours = DCOMMI_LOG_INFO;
    }
    const char *slash = strrchr(file, '/');
    vsnprintf(text, sizeof text, format, args);
    dcommi_log(ours, "UCX %s:%u %s: %s", slash != NULL ? slash + 1 : file, line, function, text);
    return 0; /* no other handler */
}

/* Take over UCX's log and undo its signal handlers. UCX writes its log to stdout. It catches
 * SIGSEGV and the like for the whole process, and keeps the program from installing handlers. A
 * user who sets UCX_HANDLE_ERRORS has asked for UCX's handlers. */
static void dcommi_ucx_tame(void)
{
    dcommi_captured_warn_host();
    dcommi_ucx_push_log(dcommi_ucx_log);
    if (getenv("UCX_HANDLE_ERRORS") == NULL) {
        dcommi_ucx_hush++;
        static const int caught[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};
        for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) {
            dcommi_ucx_drop_signal(caught[i]);
        }
        dcommi_ucx_hush--;
    }
}

static void dcommi_ucx_tame_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, dcommi_ucx_tame);
}

/* ---- options ---- */

typedef struct dcommi_ucx_option {
    const char *name; /* NULL: none */
    const char *value;
    const char *user; /* the environment variable that overrides it; NULL: none */
    bool of_tcp;      /* UCX wants the transport's name before it since 1.17, and not before */
} dcommi_ucx_option;

static bool dcommi_ucx_since(unsigned wanted_minor)
{
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    return major > 1 || minor >= wanted_minor;
}

static dcomm_status dcommi_ucx_set_options(ucp_config_t *config, const dcommi_ucx_option *options,
                                           size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (options[i].name == NULL ||
            (options[i].user != NULL && getenv(options[i].user) != NULL)) {
            continue;
        }
        char name[64];
        snprintf(name, sizeof name, "%s%s", options[i].of_tcp && dcommi_ucx_since(17) ? "TCP_" : "",
                 options[i].name);
        ucs_status_t status = ucp_config_modify(config, name, options[i].value);
        if (status != UCS_OK) {
            return dcommi_fail(DCOMM_ERR_TRANSPORT, "UCX refuses its option %s=%s: %s", name,
                               options[i].value, ucs_status_string(status));
        }
    }
    return DCOMM_OK;
}

/* Create a UCX context and its worker. On an error the caller frees *context and *worker, if not
 * NULL. */
static dcomm_status dcommi_ucx_start(const char *name, uint64_t features,
                                     const dcommi_ucx_option *options, size_t n_options,
                                     ucp_context_h *context, ucp_worker_h *worker)
{
    ucp_config_t *config = NULL;
    *context = NULL;
    *worker = NULL;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) {
        return dcommi_fail(DCOMM_ERR_TRANSPORT, "%s: UCX cannot read its configuration: %s", name,
                           ucs_status_string(status));
    }
    dcomm_status set = dcommi_ucx_set_options(config, options, n_options);
    if (set == DCOMM_OK) {
        ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = features};
        status = ucp_init(&params, config, context);
    }
    ucp_config_release(config);
    DCOMMI_TRY(set);
    if (status != UCS_OK) {
        *context = NULL;
        return dcommi_fail(dcommi_ucx_status(status), "%s: UCX does not start: %s", name,
                           ucs_status_string(status));
    }
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    status = ucp_worker_create(*context, &params, worker);
    if (status != UCS_OK) {
        *worker = NULL;
        return dcommi_fail(dcommi_ucx_status(status), "%s: UCX cannot create a worker: %s", name,
                           ucs_status_string(status));
    }
    return DCOMM_OK;
}

/* ---- device memory ---- */

/* Return true if we ask UCX for its CUDA transports. DCOMM_UCX_CUDA=0 forbids it. Scratch comes
 * from a pool, which UCX recognizes since 1.14, as managed memory. */
static bool dcommi_ucx_asks_device(void)
{
#ifdef DCOMM_WITH_CUDA
    return dcommi_env_flag("DCOMM_UCX_CUDA", true) && dcommi_ucx_since(14);
#else
    return false;
#endif
}

/* Return true if UCX moves our device memory. */
static bool dcommi_ucx_takes_device(ucp_context_h context)
{
    const uint64_t wanted =
        UINT64_C(1) << UCS_MEMORY_TYPE_CUDA | UINT64_C(1) << UCS_MEMORY_TYPE_CUDA_MANAGED;
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    return ucp_context_query(context, &attr) == UCS_OK && (attr.memory_types & wanted) == wanted;
}

#endif

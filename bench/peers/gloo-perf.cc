/* gloo-perf.cc - Gloo's collectives over TCP, timed by the rule of peer_perf.h: as PyTorch calls
 * them, by the functions with options, which choose the algorithm. Started by dcomm-run. Ranks meet
 * in the directory PEER_STORE, new for each run; PEER_IFACE names the network interface (lo). */
#include "peer_perf.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>
#include <exception>

static std::shared_ptr<gloo::rendezvous::Context> peer_context;

static void peer_library_name(char *name, size_t len)
{
    snprintf(name, len, "gloo-%s", PEER_VERSION);
}

static bool peer_can(peer_op op, bool in_place)
{
    (void)in_place;
    return op != PEER_REDUCE_SCATTER;
}

static void peer_barrier(void)
{
    gloo::BarrierOptions options(peer_context);
    gloo::barrier(options);
}

static void peer_call(const peer_case *c)
{
    size_t all = c->count * (size_t)c->nranks;
    switch (c->op) {
    case PEER_ALLREDUCE: {
        gloo::AllreduceOptions options(peer_context);
        if (!c->in_place) {
            options.setInput(c->input, c->count);
        }
        options.setOutput(c->work, c->count);
        void (*sum)(void *, const void *, const void *, size_t) = &gloo::sum<float>;
        options.setReduceFunction(sum);
        gloo::allreduce(options);
        break;
    }
    case PEER_ALLGATHER: {
        gloo::AllgatherOptions options(peer_context);
        if (!c->in_place) {
            options.setInput(c->input, c->count);
        }
        options.setOutput(c->work, all);
        gloo::allgather(options);
        break;
    }
    case PEER_BROADCAST: {
        gloo::BroadcastOptions options(peer_context);
        options.setOutput(c->work, c->count);
        options.setRoot(0);
        gloo::broadcast(options);
        break;
    }
    default: {
        gloo::AlltoallOptions options(peer_context);
        options.setInput(c->in_place ? c->work : c->input, all);
        options.setOutput(c->work, all);
        gloo::alltoall(options);
        break;
    }
    }
}

static void peer_max(double *values, int n)
{
    gloo::AllreduceOptions options(peer_context);
    options.setOutput(values, (size_t)n);
    void (*max)(void *, const void *, const void *, size_t) = &gloo::max<double>;
    options.setReduceFunction(max);
    gloo::allreduce(options);
}

static void peer_abort(int status)
{
    exit(status); /* the launcher ends the others */
}

static const char *peer_environment(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    if (value == NULL && otherwise == NULL) {
        fprintf(stderr, "gloo-perf: %s is not set\n", name);
        exit(PEER_USAGE);
    }
    return value != NULL ? value : otherwise;
}

int main(int argc, char **argv)
{
    int rank = atoi(peer_environment("RANK", NULL));
    int nranks = atoi(peer_environment("WORLD_SIZE", NULL));
    int result = PEER_COMM;
    try {
        gloo::transport::tcp::attr attr;
        attr.iface = peer_environment("PEER_IFACE", "lo");
        auto device = gloo::transport::tcp::CreateDevice(attr);
        gloo::rendezvous::FileStore store(peer_environment("PEER_STORE", NULL));
        peer_context = std::make_shared<gloo::rendezvous::Context>(rank, nranks);
        peer_context->setTimeout(std::chrono::seconds(60));
        peer_context->connectFullMesh(store, device);
        result = peer_main(argc, argv, rank, nranks);
        peer_barrier();
        peer_context.reset();
    } catch (const std::exception &error) {
        fprintf(stderr, "gloo-perf: rank %d: %s\n", rank, error.what());
        return PEER_COMM;
    }
    return result;
}

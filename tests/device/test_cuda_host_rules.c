/* test_cuda_host_rules.c - the host stand-in for CUDA: contexts, priorities, and the rules that
 * make it as harsh as a device can be. */
#define _GNU_SOURCE
#include "cuda.h"
#include "cuda_host.h"
#include "cuda_runtime_api.h"
#include "dcomm.h"
#include "procs.h"
#include <criterion/criterion.h>
#include <pthread.h>

#define GOOD(call)                                                                      \
    do {                                                                                \
        cudaError_t status_ = (call);                                                   \
        cr_assert_eq(status_, cudaSuccess, "%s: %s", #call, cudaGetErrorName(status_)); \
    } while (0)
#define IS(call, error)                                                           \
    do {                                                                          \
        cudaError_t status_ = (call);                                             \
        cr_assert_eq(status_, error, "%s: %s", #call, cudaGetErrorName(status_)); \
    } while (0)

/* ---- contexts ---- */

static uint64_t contexts(void)
{
    cuda_host_counts counts;
    cuda_host_get_counts(&counts);
    return counts.contexts;
}

static CUcontext context_of_thread(void)
{
    CUcontext context = NULL;
    cr_assert_eq(cuCtxGetCurrent(&context), CUDA_SUCCESS);
    return context;
}

Test(cuda_host_rules, the_first_call_that_needs_it_makes_a_context)
{
    int device = -1, value;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    struct cudaPointerAttributes is;
    GOOD(cudaGetDevice(&device));
    cr_assert_eq(device, 0);
    GOOD(cudaGetDeviceCount(&value));
    GOOD(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
    GOOD(cudaPointerGetAttributes(&is, &device));
    cr_assert(contexts() == 0 && context_of_thread() == NULL);
    cr_assert_eq(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
    GOOD(cudaThreadExchangeStreamCaptureMode(&mode));
    cr_assert(contexts() == 1 && context_of_thread() != NULL);
    GOOD(cudaSetDevice(3));
    cr_assert_eq(contexts(), 9);
    cr_assert_eq(cuCtxGetDevice(&device), CUDA_SUCCESS);
    cr_assert_eq(device, 3);
    GOOD(cudaDeviceReset());
    cr_assert_eq(contexts(), 1);
}

typedef struct other {
    cudaStream_t stream;
    cudaEvent_t event;
    uint32_t *word;
    int failed;
} other;

/* Make calls in a thread without a context that need none. */
static void *without(void *arg)
{
    other *o = arg;
    CUcontext context = NULL;
    const CUdeviceptr at = (CUdeviceptr)(uintptr_t)o->word;
    o->failed += cudaEventQuery(o->event) != cudaSuccess;
    o->failed += cuStreamWriteValue32(o->stream, at, 7, 0) != CUDA_SUCCESS;
    o->failed += cuStreamWriteValue32(NULL, at, 7, 0) != CUDA_ERROR_INVALID_CONTEXT;
    o->failed += cuCtxGetCurrent(&context) != CUDA_SUCCESS || context != NULL;
    return NULL;
}

Test(cuda_host_rules, a_thread_has_a_context_or_none)
{
    other o = {.failed = 0};
    pthread_t thread;
    int device = -1;
    void *p;
    GOOD(cudaSetDevice(2));
    CUcontext two = context_of_thread();
    GOOD(cudaStreamCreateWithFlags(&o.stream, cudaStreamNonBlocking));
    GOOD(cudaEventCreate(&o.event));
    GOOD(cudaEventRecord(o.event, o.stream));
    GOOD(cudaStreamSynchronize(o.stream));
    GOOD(cudaHostAlloc((void **)&o.word, 4, cudaHostAllocPortable));
    cr_assert_eq(pthread_create(&thread, NULL, without, &o), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert(o.failed == 0 && contexts() == 4, "%d %llx", o.failed,
              (unsigned long long)contexts());
    GOOD(cudaSetDevice(1));
    cr_assert_eq(cuCtxSetCurrent(two), CUDA_SUCCESS);
    GOOD(cudaGetDevice(&device));
    cr_assert_eq(device, 2);
    cr_assert_eq(cuCtxSetCurrent(NULL), CUDA_SUCCESS);
    GOOD(cudaGetDevice(&device)); /* of the last cudaSetDevice */
    cr_assert(device == 1 && context_of_thread() == NULL);
    GOOD(cudaMalloc(&p, 16));
    cr_assert_eq(cuCtxGetDevice(&device), CUDA_SUCCESS);
    cr_assert(device == 1 && contexts() == 6);
    cr_assert_eq(cuCtxSetCurrent((CUcontext)(void *)&o), CUDA_ERROR_INVALID_CONTEXT);
}

/* ---- what dcomm asks of a device ---- */

Test(cuda_host_rules, streams_have_priorities)
{
    cudaStream_t s[3];
    int least = 1, greatest = 1, is = 1;
    GOOD(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cr_assert(least == 0 && greatest == -5);
    GOOD(cudaStreamCreateWithPriority(&s[0], cudaStreamNonBlocking, greatest));
    GOOD(cudaStreamCreateWithPriority(&s[1], cudaStreamNonBlocking, -100));
    GOOD(cudaStreamCreateWithFlags(&s[2], cudaStreamNonBlocking));
    for (int i = 0; i < 3; i++) {
        GOOD(cudaStreamGetPriority(s[i], &is));
        cr_assert_eq(is, i < 2 ? greatest : least);
        GOOD(cudaStreamDestroy(s[i]));
    }
}

Test(cuda_host_rules, pools_keep_their_attributes)
{
    const struct cudaMemPoolProps props = {
        .allocType = cudaMemAllocationTypePinned,
        .location = {.type = cudaMemLocationTypeDevice, .id = 0}};
    cudaMemPool_t pool;
    int no = 0, is = -1;
    uint64_t keep = (uint64_t)1 << 40, kept = 0;
    GOOD(cudaMemPoolCreate(&pool, &props));
    GOOD(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &no));
    GOOD(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    GOOD(cudaMemPoolGetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &is));
    cr_assert_eq(is, 0);
    GOOD(cudaMemPoolGetAttribute(pool, cudaMemPoolReuseAllowOpportunistic, &is));
    cr_assert_eq(is, 1);
    GOOD(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept));
    cr_assert_eq(kept, keep);
    IS(cudaMemPoolSetAttribute(pool, (enum cudaMemPoolAttr)9, &no), cudaErrorInvalidValue);
    GOOD(cudaMemPoolDestroy(pool));
}

Test(cuda_host_rules, a_nics_writes_may_need_a_flush)
{
    cuda_host_counts counts;
    int is = -1;
    GOOD(cudaDeviceGetAttribute(&is, cudaDevAttrGPUDirectRDMAWritesOrdering, 0));
    cr_assert_eq(is, cudaGPUDirectRDMAWritesOrderingAllDevices);
    cuda_host_set_faults(&(cuda_host_faults){.rdma_unordered = true});
    GOOD(cudaDeviceGetAttribute(&is, cudaDevAttrGPUDirectRDMAWritesOrdering, 0));
    cr_assert_eq(is, cudaGPUDirectRDMAWritesOrderingNone);
    GOOD(cudaDeviceGetAttribute(&is, cudaDevAttrGPUDirectRDMAFlushWritesOptions, 0));
    cr_assert_eq(is & cudaFlushGPUDirectRDMAWritesOptionHost, 1);
    GOOD(cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                            cudaFlushGPUDirectRDMAWritesToOwner));
    IS(cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                          (enum cudaFlushGPUDirectRDMAWritesScope)0),
       cudaErrorInvalidValue);
    cuda_host_get_counts(&counts);
    cr_assert_eq(counts.flushes, 1);
}

/* ---- what a call can wait for ---- */

/* A call in a thread of its own, which may have to wait. */
typedef struct call {
    void (*make)(void *arg);
    void *arg;
    pthread_t thread;
    _Atomic int done;
} call;

static void *make_call(void *user)
{
    call *c = user;
    c->make(c->arg);
    atomic_store(&c->done, 1);
    return NULL;
}

static void start(call *c, void (*make)(void *arg), void *arg)
{
    *c = (call){.make = make, .arg = arg};
    cr_assert_eq(pthread_create(&c->thread, NULL, make_call, c), 0);
}

static bool waits(const call *c)
{
    for (int i = 0; i < 10; i++) {
        usleep(1000);
    }
    return atomic_load(&c->done) == 0;
}

static void finish(call *c)
{
    cr_assert_eq(pthread_join(c->thread, NULL), 0);
    cr_assert_eq(c->done, 1);
}

/* A stream that waits for a word, and what calls need. */
static cudaStream_t shut, other_stream;
static cudaEvent_t event_of_other;
static uint32_t *word;
static void *pinned;
static char registered[64];

static void shut_stream(void)
{
    GOOD(cudaHostAlloc((void **)&word, 8, cudaHostAllocMapped));
    GOOD(cudaMallocHost(&pinned, 64));
    GOOD(cudaHostRegister(registered, sizeof registered, cudaHostRegisterDefault));
    word[0] = word[1] = 0;
    GOOD(cudaStreamCreateWithFlags(&shut, cudaStreamNonBlocking));
    GOOD(cudaStreamCreateWithFlags(&other_stream, cudaStreamNonBlocking));
    GOOD(cudaEventCreate(&event_of_other));
    GOOD(cudaEventRecord(event_of_other, other_stream));
    GOOD(cudaStreamSynchronize(other_stream));
    cr_assert_eq(cuStreamWaitValue32(shut, (CUdeviceptr)(uintptr_t)word, 1, 0), CUDA_SUCCESS);
}

static void open_stream(void)
{
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    GOOD(cudaStreamSynchronize(shut));
}

static void put_entry(void *arg)
{
    GOOD(cudaEventRecord(event_of_other, (cudaStream_t)arg));
}

static void ask_event(void *arg)
{
    (void)cudaEventQuery((cudaEvent_t)arg);
}

static void call_elsewhere(void *arg)
{
    (void)arg;
    GOOD(cudaSetDevice(1));
    GOOD(cudaStreamQuery(NULL));
}

static void synchronize(void *arg)
{
    GOOD(cudaStreamSynchronize((cudaStream_t)arg));
}

static void free_host(void *arg)
{
    (void)arg;
    GOOD(cudaFreeHost(pinned));
}

static void unregister(void *arg)
{
    (void)arg;
    GOOD(cudaHostUnregister(registered));
}

static void alloc_host(void *arg)
{
    (void)arg;
    GOOD(cudaHostAlloc(&pinned, 64, cudaHostAllocPortable));
}

static void free_device(void *arg)
{
    GOOD(cudaFree(arg));
}

static void load(void *arg)
{
    (void)arg;
    cr_assert_eq(dcomm_cuda_load(), DCOMM_OK);
}

static void launch(void *arg)
{
    cr_assert_eq(dcomm_cuda_scale(arg, arg, 4, DCOMM_F32, 2, other_stream), DCOMM_OK);
}

/* Make a call while a stream is shut; check if it waits until the stream is open, and if another
 * thread's call waits for it. */
static void check_call(const char *name, const cuda_host_rules *rules, void (*make)(void *arg),
                       void *arg, bool waits_for_streams, bool holds)
{
    call first, second, elsewhere;
    cuda_host_set_rules(&(cuda_host_rules){0});
    shut_stream();
    cuda_host_set_rules(rules);
    start(&first, make, arg == NULL ? shut : arg);
    cr_assert_eq(waits(&first), waits_for_streams, "%s", name);
    start(&second, ask_event, event_of_other);
    cr_assert_eq(waits(&second), holds, "%s and another", name);
    start(&elsewhere, call_elsewhere, NULL);
    finish(&elsewhere);
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    finish(&first);
    finish(&second);
    GOOD(cudaStreamSynchronize(shut));
    (void)cudaHostUnregister(registered);
}

Test(cuda_host_rules, a_full_queue_lets_its_caller_wait)
{
    const cuda_host_rules rules[] = {{.queue = 4, .lock = true}, {.queue = 4}, {.lock = true}};
    for (int i = 0; i < 3; i++) {
        shut_stream();
        cuda_host_set_rules(&rules[i]);
        for (int n = 1; n < 4; n++) { /* beside the wait for the word */
            put_entry(shut);
        }
        call fifth, second;
        start(&fifth, put_entry, shut);
        cr_assert_eq(waits(&fifth), rules[i].queue > 0, "%d", i);
        start(&second, ask_event, event_of_other);
        cr_assert_eq(waits(&second), i == 0, "%d", i);
        open_stream();
        finish(&fifth);
        finish(&second);
        (void)cudaHostUnregister(registered);
    }
}

Test(cuda_host_rules, calls_wait_for_all_streams_and_hold_the_lock)
{
    const cuda_host_rules free_waits = {.free_waits = true, .lock = true},
                          alloc_waits = {.alloc_waits = true, .lock = true}, lock = {.lock = true},
                          none = {0};
    void *device;
    GOOD(cudaMalloc(&device, 64));
    check_call("cudaFreeHost", &free_waits, free_host, NULL, true, true);
    check_call("cudaFreeHost, mild", &lock, free_host, NULL, false, false);
    check_call("cudaHostUnregister", &free_waits, unregister, NULL, true, true);
    check_call("cudaHostUnregister, mild", &lock, unregister, NULL, false, false);
    check_call("cudaHostAlloc", &alloc_waits, alloc_host, NULL, true, true);
    check_call("cudaHostAlloc, mild", &free_waits, alloc_host, NULL, false, false);
    check_call("cudaFree", &lock, free_device, device, true, true);
    GOOD(cudaMalloc(&device, 64));
    check_call("cudaFree, no lock", &none, free_device, device, true, false);
}

Test(cuda_host_rules, synchronizing_holds_the_lock_only_if_asked)
{
    const cuda_host_rules lock = {.lock = true}, sync = {.lock = true, .sync_holds = true};
    check_call("cudaStreamSynchronize", &lock, synchronize, NULL, true, false);
    check_call("cudaStreamSynchronize, harsh", &sync, synchronize, NULL, true, true);
}

Test(cuda_host_rules, kernels_are_loaded)
{
    const cuda_host_rules rules = {.load_waits = true, .lock = true};
    void *x;
    GOOD(cudaMalloc(&x, 64));
    check_call("a kernel that is not loaded", &rules, launch, x, true, true);
    check_call("dcomm_cuda_load", &rules, load, NULL, true, true);
    check_call("dcomm_cuda_load again", &rules, load, NULL, false, false);
    check_call("a loaded kernel", &rules, launch, x, false, false);
}

/* ---- hardware queues ---- */

static void note(void *user)
{
    atomic_fetch_add((_Atomic int *)user, 1);
}

static bool runs(_Atomic int *calls)
{
    for (int i = 0; i < 20 && atomic_load(calls) == 0; i++) {
        usleep(1000);
    }
    return atomic_load(calls) > 0;
}

Test(cuda_host_rules, streams_share_hardware_queues)
{
    for (unsigned connections = 0; connections < 3; connections++) {
        cudaStream_t s[3], urgent;
        _Atomic int calls[4] = {0};
        cuda_host_set_rules(&(cuda_host_rules){.connections = connections});
        GOOD(cudaHostAlloc((void **)&word, 8, cudaHostAllocMapped));
        word[0] = 0;
        for (int i = 0; i < 3; i++) {
            GOOD(cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking));
        }
        GOOD(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, -5));
        cr_assert_eq(cuStreamWaitValue32(s[0], (CUdeviceptr)(uintptr_t)word, 1, 0), CUDA_SUCCESS);
        for (int i = 0; i < 4; i++) {
            GOOD(cudaLaunchHostFunc(i < 3 ? s[i] : urgent, note, (void *)&calls[i]));
        }
        cr_assert(runs(&calls[3]), "%u", connections);
        cr_assert_eq(runs(&calls[1]), connections != 1, "%u", connections);
        cr_assert_eq(runs(&calls[2]), connections == 0, "%u", connections);
        cr_assert_not(runs(&calls[0]));
        __atomic_store_n(word, 1, __ATOMIC_RELEASE);
        for (int i = 0; i < 3; i++) {
            GOOD(cudaStreamSynchronize(s[i]));
            cr_assert_eq(atomic_load(&calls[i]), 1);
            GOOD(cudaStreamDestroy(s[i]));
        }
        GOOD(cudaStreamDestroy(urgent));
    }
}

/* A kernel that runs holds up its own stream alone. */
Test(cuda_host_rules, kernels_of_a_hardware_queue_overlap)
{
    cudaStream_t a, b;
    char *x;
    cuda_host_set_rules(&(cuda_host_rules){.connections = 1});
    GOOD(cudaMalloc((void **)&x, 64));
    GOOD(cudaHostAlloc((void **)&word, 8, cudaHostAllocMapped));
    word[0] = 0;
    GOOD(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    GOOD(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    cuda_host_set_faults(&(cuda_host_faults){.delay_s = 0.3});
    GOOD(cudaMemsetAsync(x, 1, 64, a));
    cr_assert_eq(cuStreamWriteValue32(b, (CUdeviceptr)(uintptr_t)word, 1, 0), CUDA_SUCCESS);
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == 0) {
        procs_nap();
    }
    IS(cudaStreamQuery(a), cudaErrorNotReady);
    GOOD(cudaDeviceSynchronize());
    cuda_host_set_faults(&(cuda_host_faults){0});
}

/* ---- the environment ---- */

Test(cuda_host_rules, launches_wait_for_their_kernels)
{
    char *x;
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    GOOD(cudaMalloc((void **)&x, 64));
    GOOD(cudaStreamCreateWithFlags(&other_stream, cudaStreamNonBlocking));
    cuda_host_set_faults(&(cuda_host_faults){.delay_s = 0.05});
    GOOD(cudaMemsetAsync(x, 1, 64, other_stream));
    GOOD(cudaStreamQuery(other_stream));
    cr_assert_eq(dcomm_cuda_load(), DCOMM_OK);
    launch(x);
    GOOD(cudaStreamQuery(other_stream));
    cuda_host_set_rules(&(cuda_host_rules){0});
    launch(x);
    IS(cudaStreamQuery(other_stream), cudaErrorNotReady);
    GOOD(cudaStreamSynchronize(other_stream));
    cuda_host_set_faults(&(cuda_host_faults){0});
}

Test(cuda_host_rules, the_environment_chooses_rules)
{
    setenv("CUDA_HOST_HARSH", "queue=3,lock", 1);
    shut_stream();
    call fourth, second;
    put_entry(shut);
    put_entry(shut);
    start(&fourth, put_entry, shut);
    cr_assert(waits(&fourth));
    start(&second, ask_event, event_of_other);
    cr_assert(waits(&second));
    open_stream();
    finish(&fourth);
    finish(&second);
}

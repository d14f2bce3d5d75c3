/* test_cuda_host.c - the host stand-in for CUDA does what NCCL programs and dcomm expect of
 * CUDA. */
#define _GNU_SOURCE
#include "cuda.h"
#include "cuda_host.h"
#include "cuda_runtime_api.h"
#include "dcomm.h"
#include "procs.h"
#include <criterion/criterion.h>
#include <math.h>
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

/* A host function that blocks a stream until the test opens it. */
typedef struct gate {
    _Atomic int open, reached;
} gate;

static void pass(void *user)
{
    gate *g = user;
    atomic_store(&g->reached, 1);
    while (atomic_load(&g->open) == 0) {
        procs_nap();
    }
}

static void note(void *user)
{
    atomic_fetch_add((_Atomic int *)user, 1);
}

Test(cuda_host, a_stream_runs_in_order_beside_its_caller)
{
    cudaStream_t stream;
    gate g = {0};
    int in[4] = {1, 2, 3, 4}, *pinned, *device, out[4] = {0};
    GOOD(cudaStreamCreate(&stream));
    GOOD(cudaMalloc((void **)&device, sizeof in));
    GOOD(cudaMallocHost((void **)&pinned, sizeof in));
    GOOD(cudaLaunchHostFunc(stream, pass, &g));
    GOOD(cudaMemcpyAsync(device, in, sizeof in, cudaMemcpyHostToDevice, stream));
    in[0] = 99; /* pageable memory can be reused at once */
    GOOD(cudaMemcpyAsync(pinned, device, sizeof in, cudaMemcpyDeviceToHost, stream));
    IS(cudaStreamQuery(stream), cudaErrorNotReady);
    IS(cudaGetLastError(), cudaErrorNotReady);
    pinned[0] = 7;
    atomic_store(&g.open, 1);
    GOOD(cudaStreamSynchronize(stream));
    GOOD(cudaStreamQuery(stream));
    cr_assert_eq(pinned[0], 1);
    cr_assert_eq(pinned[3], 4);
    GOOD(cudaMemset(device, 0, sizeof(int)));
    GOOD(cudaMemcpy(out, device, sizeof out, cudaMemcpyDeviceToHost));
    cr_assert(out[0] == 0 && out[1] == 2);
    GOOD(cudaFree(device));
    GOOD(cudaFreeHost(pinned));
    GOOD(cudaStreamDestroy(stream));
    IS(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
}

Test(cuda_host, events_order_streams_and_measure_time)
{
    cudaStream_t a, b;
    cudaEvent_t start, end;
    gate g = {0};
    _Atomic int after = 0;
    float ms = -1;
    GOOD(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    GOOD(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    GOOD(cudaEventCreate(&start));
    GOOD(cudaEventCreate(&end));
    GOOD(cudaEventQuery(start)); /* never recorded: complete */
    GOOD(cudaEventRecord(start, a));
    GOOD(cudaLaunchHostFunc(a, pass, &g));
    GOOD(cudaEventRecord(end, a));
    GOOD(cudaStreamWaitEvent(b, end, 0));
    GOOD(cudaLaunchHostFunc(b, note, (void *)&after));
    GOOD(cudaEventSynchronize(start));
    IS(cudaEventQuery(end), cudaErrorNotReady);
    IS(cudaEventElapsedTime(&ms, start, end), cudaErrorNotReady);
    usleep(5000);
    cr_assert_eq(atomic_load(&after), 0);
    GOOD(cudaEventRecord(start, b)); /* the wait above is for the earlier recording */
    atomic_store(&g.open, 1);
    GOOD(cudaStreamSynchronize(b));
    cr_assert_eq(atomic_load(&after), 1);
    GOOD(cudaEventRecord(start, a));
    GOOD(cudaLaunchHostFunc(a, pass, &g));
    GOOD(cudaEventRecord(end, a));
    GOOD(cudaEventSynchronize(end));
    GOOD(cudaEventElapsedTime(&ms, start, end));
    cr_assert(ms >= 0 && ms < 1e4f, "%g", (double)ms);
    GOOD(cudaEventDestroy(start));
    GOOD(cudaEventDestroy(end));
    GOOD(cudaStreamDestroy(a));
    GOOD(cudaStreamDestroy(b));
}

Test(cuda_host, the_default_stream_waits_for_blocking_streams_and_they_for_it)
{
    cudaStream_t blocking, other;
    gate g = {0};
    _Atomic int in_default = 0, in_other = 0, in_blocking = 0;
    GOOD(cudaStreamCreate(&blocking));
    GOOD(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    GOOD(cudaLaunchHostFunc(blocking, pass, &g));
    GOOD(cudaLaunchHostFunc(cudaStreamLegacy, note, (void *)&in_default));
    GOOD(cudaLaunchHostFunc(blocking, note, (void *)&in_blocking));
    GOOD(cudaLaunchHostFunc(other, note, (void *)&in_other));
    GOOD(cudaStreamSynchronize(other));
    cr_assert(atomic_load(&in_other) == 1 && atomic_load(&in_default) == 0);
    atomic_store(&g.open, 1);
    GOOD(cudaStreamSynchronize(NULL));
    cr_assert_eq(atomic_load(&in_default), 1);
    GOOD(cudaDeviceSynchronize());
    cr_assert_eq(atomic_load(&in_blocking), 1);
    atomic_store(&g.open, 0);
    atomic_store(&g.reached, 0);
    GOOD(cudaLaunchHostFunc(NULL, pass, &g));
    GOOD(cudaLaunchHostFunc(blocking, note, (void *)&in_blocking));
    GOOD(cudaLaunchHostFunc(cudaStreamPerThread, note, (void *)&in_other));
    usleep(5000);
    cr_assert(atomic_load(&in_blocking) == 1 && atomic_load(&in_other) == 1);
    atomic_store(&g.open, 1);
    GOOD(cudaStreamSynchronize(cudaStreamPerThread));
    GOOD(cudaStreamSynchronize(blocking));
    cr_assert(atomic_load(&in_blocking) == 2 && atomic_load(&in_other) == 2);
}

static cudaError_t from_host_function;

static void call_from_host_function(void *user)
{
    from_host_function = cudaMalloc(user, 16);
}

Test(cuda_host, a_host_function_may_not_call)
{
    void *p = NULL;
    GOOD(cudaLaunchHostFunc(NULL, call_from_host_function, &p));
    GOOD(cudaDeviceSynchronize());
    cr_assert_eq(from_host_function, cudaErrorNotPermitted);
}

Test(cuda_host, pointers_are_known_for_what_they_are)
{
    struct cudaPointerAttributes is;
    void *device, *pinned, *managed, *at;
    static int registered[1024];
    int here = 0;
    GOOD(cudaSetDevice(2));
    GOOD(cudaMalloc(&device, 8192));
    GOOD(cudaHostAlloc(&pinned, 100, cudaHostAllocPortable | cudaHostAllocMapped));
    GOOD(cudaMallocManaged(&managed, 100, cudaMemAttachGlobal));
    GOOD(cudaHostRegister(registered, sizeof registered, cudaHostRegisterDefault));
    IS(cudaHostRegister(registered + 8, 8, 0), cudaErrorHostMemoryAlreadyRegistered);
    GOOD(cudaSetDevice(0));
    GOOD(cudaPointerGetAttributes(&is, (char *)device + 8191));
    cr_assert(is.type == cudaMemoryTypeDevice && is.device == 2 && is.hostPointer == NULL);
    GOOD(cudaPointerGetAttributes(&is, (char *)device + 8192));
    cr_assert(is.type == cudaMemoryTypeUnregistered && is.device == cudaInvalidDeviceId);
    GOOD(cudaPointerGetAttributes(&is, pinned));
    cr_assert(is.type == cudaMemoryTypeHost && is.devicePointer == pinned);
    GOOD(cudaPointerGetAttributes(&is, managed));
    cr_assert_eq(is.type, cudaMemoryTypeManaged);
    GOOD(cudaPointerGetAttributes(&is, registered + 1023));
    cr_assert(is.type == cudaMemoryTypeHost && is.hostPointer == registered + 1023);
    GOOD(cudaPointerGetAttributes(&is, &here));
    cr_assert(is.type == cudaMemoryTypeUnregistered && is.hostPointer == &here);
    GOOD(cudaHostGetDevicePointer(&at, pinned, 0));
    cr_assert_eq(at, pinned);
    GOOD(cudaHostUnregister(registered));
    IS(cudaHostUnregister(registered), cudaErrorHostMemoryNotRegistered);
    IS(cudaFree(pinned), cudaErrorInvalidValue);
    IS(cudaFree((char *)device + 1), cudaErrorInvalidValue);
    GOOD(cudaFree(device));
    IS(cudaFree(device), cudaErrorInvalidValue);
    GOOD(cudaFree(managed));
    GOOD(cudaFreeHost(pinned));
}

Test(cuda_host, copies_check_where_they_go)
{
    char *device, here[64] = {0};
    GOOD(cudaMalloc((void **)&device, 4096));
    IS(cudaMemcpy(device, here, sizeof here, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    IS(cudaMemcpy(here, here, sizeof here, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    IS(cudaMemcpy(here, device + 4090, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    IS(cudaMemset(here, 0, 1), cudaErrorInvalidValue);
    GOOD(cudaMemcpy(device, here, sizeof here, cudaMemcpyDefault));
    cr_assert_eq(cudaPeekAtLastError(), cudaErrorInvalidValue);
    cr_assert_eq(cudaGetLastError(), cudaErrorInvalidValue);
    cr_assert_eq(cudaGetLastError(), cudaSuccess);
    GOOD(cudaFree(device));
}

Test(cuda_host, the_host_cannot_touch_device_memory)
{
    char *device;
    int ends[2];
    GOOD(cudaMalloc((void **)&device, 4096));
    cr_assert_eq(pipe(ends), 0);
    cr_assert(write(ends[1], device, 1) == -1 && errno == EFAULT);
    cr_assert(write(ends[1], "x", 1) == 1 && read(ends[0], device, 1) == -1 && errno == EFAULT);
    GOOD(cudaFree(device));
}

Test(cuda_host, memory_is_given_back_and_reused)
{
    void *p[3], *big, *again;
    size_t before, now, total;
    GOOD(cudaMemGetInfo(&before, &total));
    for (int i = 0; i < 3; i++) {
        GOOD(cudaMalloc(&p[i], 1 << 20));
        cr_assert(i == 0 || p[i] != p[i - 1]);
    }
    IS(cudaMalloc(&big, total), cudaErrorMemoryAllocation);
    GOOD(cudaMemset(p[1], 1, 1 << 20));
    GOOD(cudaFree(p[1]));
    GOOD(cudaMalloc(&again, 1 << 20));
    cr_assert_eq(again, p[1]);
    cr_assert_eq(*(char *)cuda_host_peek(again, 1), 0);
    GOOD(cudaFreeAsync(again, NULL));
    GOOD(cudaFree(p[0]));
    GOOD(cudaFree(p[2]));
    GOOD(cudaMemGetInfo(&now, &total));
    cr_assert_eq(before, now);
}

Test(cuda_host, rows_are_copied_and_filled)
{
    enum { WIDTH = 40, HEIGHT = 3 };
    char *device, here[HEIGHT][64], back[HEIGHT][WIDTH];
    cudaStream_t stream;
    size_t pitch = 0;
    for (int i = 0; i < HEIGHT * 64; i++) {
        here[i / 64][i % 64] = (char)i;
    }
    GOOD(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    GOOD(cudaMallocPitch((void **)&device, &pitch, WIDTH, HEIGHT));
    cr_assert(pitch >= WIDTH && pitch % 256 == 0);
    GOOD(cudaMemset2D(device, pitch, 0x55, pitch, HEIGHT));
    IS(cudaMemcpy2D(device, WIDTH - 1, here, 64, WIDTH, 1, cudaMemcpyHostToDevice),
       cudaErrorInvalidPitchValue);
    IS(cudaMemset2D(device, 8, 0, 9, 1), cudaErrorInvalidPitchValue);
    IS(cudaMemcpy2D(device, pitch, here, 64, WIDTH, 9, cudaMemcpyHostToDevice),
       cudaErrorInvalidValue); /* beyond the end of the memory */
    GOOD(cudaMemcpy2DAsync(device, pitch, here, 64, WIDTH, HEIGHT, cudaMemcpyHostToDevice, stream));
    GOOD(cudaMemset2DAsync(device + 1, pitch, 9, 2, HEIGHT, stream));
    GOOD(cudaStreamSynchronize(stream));
    GOOD(cudaMemcpy2D(back, WIDTH, device, pitch, WIDTH, HEIGHT, cudaMemcpyDeviceToHost));
    for (int row = 0; row < HEIGHT; row++) {
        for (int i = 0; i < WIDTH; i++) {
            cr_assert_eq(back[row][i], i == 1 || i == 2 ? 9 : (char)(64 * row + i));
        }
        cr_assert_eq(*(char *)cuda_host_peek(device + (size_t)row * pitch + WIDTH, 1), 0x55);
    }
    GOOD(cudaMemcpy2D(NULL, 1, NULL, 1, 1, 0, cudaMemcpyDefault));
    GOOD(cudaStreamDestroy(stream));
    GOOD(cudaFree(device));
}

Test(cuda_host, from_device_to_device)
{
    char *there[2], here[8] = "abcdefg";
    cudaStream_t stream;
    for (int d = 0; d < 2; d++) {
        GOOD(cudaSetDevice(d));
        GOOD(cudaMalloc((void **)&there[d], sizeof here));
    }
    GOOD(cudaStreamCreate(&stream));
    GOOD(cudaMemcpyAsync(there[0], here, sizeof here, cudaMemcpyHostToDevice, stream));
    GOOD(cudaMemcpyPeerAsync(there[1], 1, there[0], 0, sizeof here, stream));
    GOOD(cudaStreamSynchronize(stream));
    GOOD(cudaMemset(there[1] + 2, 'x', 1));
    GOOD(cudaMemcpyPeer(there[0], 0, there[1], 1, 4));
    GOOD(cudaMemcpy(here, there[0], sizeof here, cudaMemcpyDeviceToHost));
    cr_assert_str_eq(here, "abxdefg");
    IS(cudaMemcpyPeer(there[0], 1, there[1], 1, 4), cudaErrorInvalidValue);
    IS(cudaMemcpyPeer(there[0], 0, here, 1, 4), cudaErrorInvalidValue);
    IS(cudaMemcpyPeer(there[0], 0, there[1], 8, 4), cudaErrorInvalidDevice);
    GOOD(cudaStreamDestroy(stream));
}

Test(cuda_host, what_streams_and_devices_are)
{
    cudaStream_t blocking, other;
    unsigned flags = 9;
    int priority = 7, device = -1;
    char bus[16];
    GOOD(cudaStreamCreate(&blocking));
    GOOD(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    GOOD(cudaStreamGetFlags(other, &flags));
    cr_assert_eq(flags, cudaStreamNonBlocking);
    const cudaStream_t wait[] = {blocking, NULL, cudaStreamLegacy, cudaStreamPerThread};
    for (int i = 0; i < 4; i++) {
        GOOD(cudaStreamGetFlags(wait[i], &flags));
        cr_assert_eq(flags, cudaStreamDefault);
    }
    GOOD(cudaStreamGetPriority(other, &priority));
    cr_assert_eq(priority, 0);
    GOOD(cudaDeviceGetPCIBusId(bus, sizeof bus, 5));
    GOOD(cudaDeviceGetByPCIBusId(&device, bus));
    cr_assert_eq(device, 5);
    IS(cudaDeviceGetByPCIBusId(&device, "0000:77:00.0"), cudaErrorInvalidDevice);
    GOOD(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
    GOOD(cudaGetDeviceFlags(&flags));
    cr_assert_eq(flags, cudaDeviceScheduleBlockingSync);
    GOOD(cudaStreamDestroy(other));
    IS(cudaStreamGetFlags(other, &flags), cudaErrorInvalidResourceHandle);
    GOOD(cudaStreamDestroy(blocking));
}

Test(cuda_host, a_device_is_reset)
{
    void *p, *pinned, *elsewhere;
    cudaStream_t stream;
    size_t all, now, total;
    _Atomic int ran = 0;
    struct cudaPointerAttributes is;
    GOOD(cudaSetDevice(1));
    GOOD(cudaMalloc(&elsewhere, 4096));
    GOOD(cudaSetDevice(0));
    GOOD(cudaMemGetInfo(&all, &total));
    GOOD(cudaMalloc(&p, 1 << 20));
    GOOD(cudaMallocHost(&pinned, 4096));
    GOOD(cudaStreamCreate(&stream));
    GOOD(cudaLaunchHostFunc(stream, note, (void *)&ran));
    GOOD(cudaLaunchHostFunc(cudaStreamPerThread, note, (void *)&ran));
    cuda_host_set_faults(&(cuda_host_faults){.fail_copy = 1});
    GOOD(cudaMemsetAsync(p, 0, 4, stream));
    GOOD(cudaMemcpy(p, &ran, 4, cudaMemcpyHostToDevice)); /* does not wait for its end */
    IS(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
    IS(cudaMalloc(&p, 16), cudaErrorLaunchFailure);
    GOOD(cudaDeviceReset());
    cr_assert_eq(atomic_load(&ran), 2);
    GOOD(cudaGetLastError());
    GOOD(cudaMemGetInfo(&now, &total));
    cr_assert_eq(now, all);
    IS(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
    GOOD(cudaPointerGetAttributes(&is, pinned));
    cr_assert_eq(is.type, cudaMemoryTypeUnregistered);
    GOOD(cudaPointerGetAttributes(&is, elsewhere));
    cr_assert_eq(is.type, cudaMemoryTypeDevice);
    /* The device can be used again. */
    GOOD(cudaMalloc(&p, 16));
    GOOD(cudaMemset(p, 1, 16));
    GOOD(cudaLaunchHostFunc(cudaStreamPerThread, note, (void *)&ran));
    GOOD(cudaStreamSynchronize(cudaStreamPerThread));
    cr_assert_eq(atomic_load(&ran), 3);
    GOOD(cudaDeviceReset());
}

/* ---- between processes ---- */

static int share(int rank, int n, procs_shared *s, void *arg)
{
    cudaIpcMemHandle_t handle;
    char text[16] = {0}, *device = NULL;
    size_t len;
    (void)n;
    (void)arg;
    if (rank == 0) {
        PROCS_TRUE(cudaMalloc((void **)&device, 4096) == cudaSuccess); /* so that it lies inside */
        PROCS_TRUE(cudaMalloc((void **)&device, 4096) == cudaSuccess);
        PROCS_TRUE(cudaMemcpy(device, "from rank 0", 12, cudaMemcpyHostToDevice) == cudaSuccess);
        PROCS_TRUE(cudaDeviceSynchronize() == cudaSuccess);
        PROCS_TRUE(cudaIpcGetMemHandle(&handle, device + 100) == cudaSuccess);
        void *own = NULL;
        PROCS_TRUE(cudaIpcOpenMemHandle(&own, handle, cudaIpcMemLazyEnablePeerAccess) ==
                   cudaErrorDeviceUninitialized);
        procs_give(s, 0, &handle, sizeof handle);
        while (!procs_all(s, 2, 1, 0)) {
            procs_nap();
        }
        PROCS_TRUE(cudaMemcpy(text, device, 16, cudaMemcpyDeviceToHost) == cudaSuccess);
        PROCS_CHECK(strcmp(text, "from rank 1") == 0, "'%s'", text);
        return 0;
    }
    memcpy(&handle, procs_take(s, 0, &len), sizeof handle);
    struct cudaPointerAttributes is;
    PROCS_TRUE(cudaIpcOpenMemHandle((void **)&device, handle, cudaIpcMemLazyEnablePeerAccess) ==
               cudaSuccess);
    PROCS_TRUE(cudaPointerGetAttributes(&is, device) == cudaSuccess);
    PROCS_TRUE(is.type == cudaMemoryTypeDevice);
    PROCS_TRUE(cudaMemcpy(text, device, 16, cudaMemcpyDeviceToHost) == cudaSuccess);
    PROCS_CHECK(strcmp(text, "from rank 0") == 0, "'%s'", text);
    PROCS_TRUE(cudaMemcpy(device, "from rank 1", 12, cudaMemcpyHostToDevice) == cudaSuccess);
    PROCS_TRUE(cudaDeviceSynchronize() == cudaSuccess);
    procs_post(s, 1, 1);
    PROCS_TRUE(cudaFree(device) == cudaErrorInvalidValue);
    PROCS_TRUE(cudaIpcCloseMemHandle(device) == cudaSuccess);
    PROCS_TRUE(cudaIpcCloseMemHandle(device) == cudaErrorInvalidValue);
    return 0;
}

Test(cuda_host, memory_of_another_process)
{
    int ended[2];
    cr_assert_eq(procs_run(2, 60, share, NULL, ended), 0);
}

/* ---- words ---- */

typedef CUresult (*word_fn)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

static word_fn driver(const char *name)
{
    void *p = NULL;
    word_fn fn;
    enum cudaDriverEntryPointQueryResult found;
    GOOD(cudaGetDriverEntryPointByVersion(name, &p, 12000, cudaEnableDefault, &found));
    cr_assert_eq(found, cudaDriverEntryPointSuccess);
    memcpy(&fn, &p, sizeof fn);
    return fn;
}

Test(cuda_host, streams_wait_for_words_and_write_them)
{
    word_fn await = driver("cuStreamWaitValue32"), put = driver("cuStreamWriteValue32");
    volatile uint32_t *word;
    cudaStream_t a, b;
    _Atomic int after = 0;
    void *none;
    GOOD(cudaHostAlloc((void **)(uintptr_t)&word, 64, cudaHostAllocMapped));
    word[0] = word[1] = 0;
    GOOD(cudaStreamCreate(&a));
    GOOD(cudaStreamCreate(&b));
    const CUdeviceptr at = (CUdeviceptr)(uintptr_t)word;
    cr_assert_eq(await(a, at, 5, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
    cr_assert_eq(put(a, at + 4, 8, CU_STREAM_WRITE_VALUE_DEFAULT), CUDA_SUCCESS);
    cr_assert_eq(await(b, at + 4, 8, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
    GOOD(cudaLaunchHostFunc(b, note, (void *)&after));
    word[0] = 4;
    usleep(5000);
    cr_assert(word[1] == 0 && atomic_load(&after) == 0);
    word[0] = 6;
    GOOD(cudaStreamSynchronize(b));
    cr_assert(word[1] == 8 && atomic_load(&after) == 1);
    cr_assert_eq(await(a, (CUdeviceptr)(uintptr_t)&after, 1, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cudaGetDriverEntryPoint("cuNothing", &none, cudaEnableDefault, NULL),
       cudaErrorSymbolNotFound);
    GOOD(cudaStreamDestroy(a));
    GOOD(cudaStreamDestroy(b));
}

/* ---- capture ---- */

Test(cuda_host, a_captured_stream_is_replayed)
{
    cudaStream_t s;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t event;
    enum cudaStreamCaptureStatus is;
    _Atomic int calls = 0;
    GOOD(cudaStreamCreate(&s));
    GOOD(cudaEventCreate(&event));
    IS(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeGlobal),
       cudaErrorStreamCaptureUnsupported);
    GOOD(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    GOOD(cudaStreamIsCapturing(s, &is));
    cr_assert_eq(is, cudaStreamCaptureStatusActive);
    GOOD(cudaLaunchHostFunc(s, note, (void *)&calls));
    GOOD(cudaLaunchHostFunc(s, note, (void *)&calls));
    GOOD(cudaStreamEndCapture(s, &graph));
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    GOOD(cudaGraphDestroy(graph));
    GOOD(cudaStreamSynchronize(s));
    cr_assert_eq(atomic_load(&calls), 0);
    GOOD(cudaGraphLaunch(exec, s));
    GOOD(cudaGraphLaunch(exec, s));
    GOOD(cudaStreamSynchronize(s));
    cr_assert_eq(atomic_load(&calls), 4);
    GOOD(cudaGraphExecDestroy(exec));
    GOOD(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    IS(cudaStreamSynchronize(s), cudaErrorStreamCaptureUnsupported);
    IS(cudaLaunchHostFunc(s, note, (void *)&calls), cudaErrorStreamCaptureInvalidated);
    IS(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
    GOOD(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    IS(cudaEventRecord(event, s), cudaErrorStreamCaptureUnsupported);
    IS(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
    GOOD(cudaLaunchHostFunc(s, note, (void *)&calls));
    GOOD(cudaStreamSynchronize(s));
    cr_assert_eq(atomic_load(&calls), 5);
    GOOD(cudaEventDestroy(event));
    GOOD(cudaStreamDestroy(s));
}

static void *other_thread(void *arg)
{
    cudaEvent_t event = arg;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaError_t relaxed = cudaEventQuery(event);
    bool was_global = mode == cudaStreamCaptureModeGlobal;
    cudaThreadExchangeStreamCaptureMode(&mode);
    bool good = relaxed == cudaSuccess && was_global;
    return (void *)(intptr_t)(good ? cudaEventQuery(event) : cudaErrorUnknown);
}

/* Calls that could harm a capture fail and end it, in whichever thread, unless the thread has
 * relaxed its capture mode. */
Test(cuda_host, captures_are_kept_from_harm)
{
    static const enum cudaStreamCaptureMode modes[] = {cudaStreamCaptureModeGlobal,
                                                       cudaStreamCaptureModeThreadLocal,
                                                       cudaStreamCaptureModeRelaxed};
    cudaStream_t s;
    cudaEvent_t event;
    cudaGraph_t graph;
    void *p = NULL;
    GOOD(cudaStreamCreate(&s));
    GOOD(cudaEventCreate(&event));
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        void *result = NULL;
        bool ends = i == 0;
        GOOD(cudaStreamBeginCapture(s, modes[i]));
        cr_assert_eq(pthread_create(&thread, NULL, other_thread, event), 0);
        cr_assert_eq(pthread_join(thread, &result), 0);
        cr_assert_eq((cudaError_t)(intptr_t)result,
                     ends ? cudaErrorStreamCaptureUnsupported : cudaSuccess, "mode %d", i);
        IS(cudaStreamEndCapture(s, &graph), ends ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
        if (!ends) {
            GOOD(cudaGraphDestroy(graph));
        }
        ends = i < 2;
        GOOD(cudaStreamBeginCapture(s, modes[i]));
        IS(cudaMalloc(&p, 16), ends ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
        IS(cudaStreamEndCapture(s, &graph), ends ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
        if (!ends) {
            GOOD(cudaGraphDestroy(graph));
            GOOD(cudaFree(p));
        }
    }
    GOOD(cudaEventDestroy(event));
    GOOD(cudaStreamDestroy(s));
}

/* ---- faults ---- */

Test(cuda_host, copies_are_late_and_overtake_each_other)
{
    enum { STREAMS = 8 };
    cudaStream_t s[STREAMS];
    cudaEvent_t begin, end[STREAMS];
    char *device, *pinned;
    float last = 0, ms;
    int overtaken = 0;
    GOOD(cudaMalloc((void **)&device, STREAMS));
    GOOD(cudaMallocHost((void **)&pinned, STREAMS));
    GOOD(cudaEventCreate(&begin));
    cuda_host_set_faults(&(cuda_host_faults){.delay_s = 0.02, .shuffle = 1});
    GOOD(cudaEventRecord(begin, NULL));
    for (int i = 0; i < STREAMS; i++) {
        GOOD(cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking));
        GOOD(cudaEventCreate(&end[i]));
        GOOD(cudaMemcpyAsync(pinned + i, device + i, 1, cudaMemcpyDeviceToHost, s[i]));
        GOOD(cudaEventRecord(end[i], s[i]));
    }
    GOOD(cudaDeviceSynchronize());
    for (int i = 0; i < STREAMS; i++) {
        GOOD(cudaEventElapsedTime(&ms, begin, end[i]));
        overtaken += ms < last;
        last = ms;
        GOOD(cudaEventDestroy(end[i]));
        GOOD(cudaStreamDestroy(s[i]));
    }
    GOOD(cudaEventDestroy(begin));
    cr_assert(overtaken > 0);
    cuda_host_set_faults(&(cuda_host_faults){0});
}

Test(cuda_host, an_error_of_a_copy_stays_and_ends_waits)
{
    cudaStream_t a, b;
    cudaEvent_t event;
    char *device, *pinned;
    _Atomic int after = 0;
    volatile uint32_t *word;
    GOOD(cudaMalloc((void **)&device, 16));
    GOOD(cudaMallocHost((void **)&pinned, 16));
    GOOD(cudaMallocHost((void **)(uintptr_t)&word, 16));
    *word = 0;
    GOOD(cudaStreamCreate(&a));
    GOOD(cudaStreamCreate(&b));
    GOOD(cudaEventCreate(&event));
    cr_assert_eq(cuStreamWaitValue32(b, (CUdeviceptr)(uintptr_t)word, 1, 0), CUDA_SUCCESS);
    GOOD(cudaEventRecord(event, b));
    cuda_host_set_faults(&(cuda_host_faults){.fail_copy = 2});
    GOOD(cudaMemcpyAsync(pinned, device, 16, cudaMemcpyDeviceToHost, a));
    GOOD(cudaMemcpyAsync(pinned, device, 16, cudaMemcpyDeviceToHost, a));
    cudaError_t status = cudaLaunchHostFunc(a, note, (void *)&after);
    cr_assert(status == cudaSuccess || status == cudaErrorLaunchFailure);
    IS(cudaStreamSynchronize(a), cudaErrorLaunchFailure);
    IS(cudaMalloc((void **)&device, 16), cudaErrorLaunchFailure);
    IS(cudaEventQuery(event), cudaErrorLaunchFailure);
    usleep(20000);
    cr_assert_eq(atomic_load(&after), 0);
    cuda_host_set_faults(&(cuda_host_faults){.fail_malloc = 1});
    GOOD(cudaEventQuery(event));
    IS(cudaMalloc((void **)&pinned, 16), cudaErrorMemoryAllocation);
    GOOD(cudaMalloc((void **)&pinned, 16));
    GOOD(cudaDeviceSynchronize());
    GOOD(cudaEventDestroy(event));
}

/* ---- dcomm's kernels ---- */

Test(cuda_host, kernels_are_the_cpus_own)
{
    enum { N = 5000 };
    static float x[N], y[N], z[N];
    static unsigned char wire[4 * N];
    float *device;
    void *d_wire;
    dcomm_codec *codec;
    dcomm_cuda_report *report, got;
    dcomm_codec_key key = {.seed = 5, .step = 1};
    size_t bytes = 0;
    cudaStream_t s;
    for (int i = 0; i < N; i++) {
        x[i] = (float)(i % 37) - 18.5f;
    }
    x[123] = 1.0f / 0.0f;
    cr_assert_eq(dcomm_codec_create("qsgd:bits=4,nonfinite=zero", &codec), DCOMM_OK);
    const size_t most = dcomm_codec_max_bytes(codec, N);
    GOOD(cudaStreamCreate(&s));
    GOOD(cudaMalloc((void **)&device, 2 * sizeof x));
    GOOD(cudaMalloc(&d_wire, most));
    GOOD(cudaMalloc((void **)&report, sizeof *report));
    GOOD(cudaMemset(report, 0, sizeof *report));
    GOOD(cudaMemcpy(device, x, sizeof x, cudaMemcpyHostToDevice));
    cr_assert_eq(
        dcomm_cuda_encode(codec, device, NULL, NULL, N, &key, d_wire, most, NULL, report, s),
        DCOMM_OK);
    const void *wires[2] = {d_wire, d_wire};
    const size_t lens[2] = {most, most};
    cr_assert_eq(dcomm_cuda_decode_sum(codec, wires, lens, 2, device + N, N, NULL, report, s),
                 DCOMM_OK);
    const void *sources[2] = {device + N, device + N};
    cr_assert_eq(dcomm_cuda_reduce(device + N, sources, 2, N, DCOMM_F32, DCOMM_SUM, 0, s),
                 DCOMM_OK);
    cr_assert_eq(dcomm_encode(codec, x, N, &key, wire, sizeof wire, &bytes, NULL, NULL), DCOMM_OK);
    cr_assert_eq(dcomm_decode(codec, wire, bytes, y, N), DCOMM_OK);
    GOOD(cudaStreamSynchronize(s));
    GOOD(cudaMemcpy(z, device + N, sizeof z, cudaMemcpyDeviceToHost));
    GOOD(cudaMemcpy(&got, report, sizeof got, cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; i++) {
        cr_assert(z[i] == 4 * y[i], "%d: %g %g", i, (double)z[i], (double)y[i]);
    }
    cr_assert(got.nonfinite == 1 && got.first == UINT64_MAX - 123);
    /* A stream of another device than the current one accepts neither kernels nor events. */
    cudaEvent_t event;
    GOOD(cudaSetDevice(1));
    GOOD(cudaEventCreate(&event));
    cr_assert_eq(dcomm_cuda_scale(device, device, N, DCOMM_F32, 2, s), DCOMM_ERR_SYSTEM);
    IS(cudaEventRecord(event, s), cudaErrorInvalidResourceHandle);
    GOOD(cudaEventRecord(event, NULL));
    GOOD(cudaStreamWaitEvent(s, event, 0));
    GOOD(cudaEventDestroy(event));
    GOOD(cudaSetDevice(0));
    /* A host pointer given to a kernel is a fault of the device. */
    cr_assert_eq(dcomm_cuda_scale(x, device, N, DCOMM_F32, 2, s), DCOMM_OK);
    IS(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
    dcomm_codec_destroy(&codec);
}

static void slow(void *user)
{
    for (int i = 0; i < 20; i++) {
        procs_nap();
    }
    atomic_fetch_add((_Atomic int *)user, 1);
}

/* Arrays that no memory holds are refused, also where their bytes wrap around to a few. */
Test(cuda_host, arrays_longer_than_memory)
{
    const size_t many = SIZE_MAX / 4 + 2; /* 4 bytes of f32 */
    float *x;
    uint32_t *index;
    dcomm_cuda_sight *sight;
    GOOD(cudaMalloc((void **)&x, 64));
    GOOD(cudaMalloc((void **)&index, 64));
    GOOD(cudaMalloc((void **)&sight, sizeof *sight));
    const void *sources[2] = {x, x};
    cr_expect_eq(dcomm_cuda_reduce(x, sources, 2, many, DCOMM_F32, DCOMM_SUM, 0, NULL),
                 DCOMM_ERR_INVALID);
    cr_expect_not_null(strstr(dcomm_last_error(), "elements of 4 bytes"));
    cr_expect_eq(dcomm_cuda_scale(x, x, many, DCOMM_F32, 2, NULL), DCOMM_ERR_INVALID);
    cr_expect_eq(dcomm_cuda_to_f32(x, x, many, DCOMM_F16, 1, NULL), DCOMM_ERR_INVALID);
    cr_expect_eq(dcomm_cuda_from_f32(x, x, many, DCOMM_F16, NULL), DCOMM_ERR_INVALID);
    cr_expect_eq(dcomm_cuda_add_scaled(x, 1, x, many, NULL), DCOMM_ERR_INVALID);
    cr_expect_eq(dcomm_cuda_scatter(x, many, index, x, 1, false, NULL), DCOMM_ERR_INVALID);
    cr_expect_eq(dcomm_cuda_look(x, many, DCOMM_F32, 1, false, sight, index, NULL),
                 DCOMM_ERR_INVALID);
    GOOD(cudaFree(sight));
    GOOD(cudaFree(index));
    GOOD(cudaFree(x));
}

/* With stream NULL the kernel has ended when the call returns, and the call returns its fault. */
Test(cuda_host, a_kernel_without_a_stream_has_ended)
{
    enum { N = 100 };
    float *x, on_stack[N] = {0};
    cudaStream_t stream;
    _Atomic int before = 0;
    gate g = {0};
    cr_assert_eq(dcomm_cuda_load(), DCOMM_OK); /* else a launch waits for the device */
    GOOD(cudaMallocHost((void **)&x, N * sizeof *x));
    for (int i = 0; i < N; i++) {
        x[i] = (float)i;
    }
    GOOD(cudaLaunchHostFunc(NULL, slow, (void *)&before));
    cr_assert_eq(dcomm_cuda_scale(x, x, N, DCOMM_F32, 2, NULL), DCOMM_OK);
    cr_assert_eq(atomic_load(&before), 1);
    cr_assert_eq(x[N - 1], 2 * (N - 1));
    /* On a stream the kernel is only launched. */
    GOOD(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    GOOD(cudaLaunchHostFunc(stream, pass, &g));
    cr_assert_eq(dcomm_cuda_scale(x, x, N, DCOMM_F32, 2, stream), DCOMM_OK);
    cr_assert_eq(x[N - 1], 2 * (N - 1));
    atomic_store(&g.open, 1);
    GOOD(cudaStreamSynchronize(stream));
    cr_assert_eq(x[N - 1], 4 * (N - 1));
    GOOD(cudaStreamDestroy(stream));
    cr_assert_eq(dcomm_cuda_scale(on_stack, x, N, DCOMM_F32, 2, NULL), DCOMM_ERR_SYSTEM);
}

/* The kernels' reports distinguish sums beyond f32 from other errors. */
Test(cuda_host, sums_of_wires_beyond_f32)
{
    enum { N = 600 };
    static float x[N];
    static unsigned char wire[8 * N];
    const float infinite = HUGE_VALF;
    dcomm_cuda_report *report, got;
    unsigned char *d_wire, *d_out;
    float *d_x;
    size_t bytes = 0;
    for (int i = 0; i < N; i++) {
        x[i] = 3e38f;
    }
    GOOD(cudaMalloc((void **)&d_wire, sizeof wire));
    GOOD(cudaMalloc((void **)&d_out, sizeof wire));
    GOOD(cudaMalloc((void **)&d_x, sizeof x));
    GOOD(cudaMalloc((void **)&report, sizeof *report));
    for (int linear = 0; linear < 2; linear++) {
        dcomm_codec *codec;
        cr_assert_eq(dcomm_codec_create(linear ? "randk:k=0.1" : "bf16", &codec), DCOMM_OK);
        cr_assert_eq(dcomm_encode(codec, x, N, NULL, wire, sizeof wire, &bytes, NULL, NULL),
                     DCOMM_OK);
        if (linear) {
            memcpy(wire + bytes - sizeof infinite, &infinite, sizeof infinite);
        }
        const void *const wires[2] = {d_wire, d_wire};
        const size_t lens[2] = {bytes, bytes};
        GOOD(cudaMemset(report, 0, sizeof *report));
        GOOD(cudaMemcpy(d_wire, wire, bytes, cudaMemcpyHostToDevice));
        cr_assert_eq(linear
                         ? dcomm_cuda_decode_sum(codec, wires, lens, 1, d_x, N, NULL, report, NULL)
                         : dcomm_cuda_recode(codec, wires, lens, 2, 1, NULL, NULL, N, NULL, d_out,
                                             bytes, NULL, report, NULL),
                     DCOMM_OK);
        GOOD(cudaDeviceSynchronize());
        GOOD(cudaMemcpy(&got, report, sizeof got, cudaMemcpyDeviceToHost));
        cr_assert_eq(dcomm_cuda_report_check(codec, N, &got, NULL), DCOMM_ERR_RANGE, "%s",
                     dcomm_last_error());
        dcomm_codec_destroy(&codec);
    }
}

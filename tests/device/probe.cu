/* probe.cu - what a CUDA driver holds up while a stream waits for a word. A program of its own.
 *
 * usage: probe [--seconds N]      all questions, of which none begins after N seconds
 *        probe --list             their names
 *        probe --case NAME        one, in this process
 *
 * A stream A waits for a word of pinned memory (cuStreamWaitValue32). The main thread makes a call.
 * Meanwhile a second thread, like dcomm's progress thread, copies both ways, launches a kernel,
 * records and polls an event, lets its stream write a value, and then writes A's word. If the call
 * holds a lock of the driver until A moves, the second thread does not get through: a deadlock,
 * which a watchdog ends by writing the word. Each question has a process of its own and a time
 * limit. probe_queues.h asks about hardware queues.
 *
 * Prints two tables for docs/cuda.md. Exit status: 0 all questions have an answer, whichever; 1 one
 * has none, or was not reached; 2 usage. tests/device/test_gpu.sh runs it on the host stand-in. */
#include "probe_queues.h"

static const double HOLD_MS = 700; /* how long the second thread may take */
static const double STILL_MS = 50; /* a call that has not returned by then blocks */
static const double LIMIT_S = 12;  /* for a process */
static const long MOST_CALLS = 20000;

/* What a question has. */
struct place {
    cudaStream_t a = NULL, idle = NULL;
    word gate;
    cudaEvent_t event = NULL; /* on A, behind the wait */
    unsigned *device = NULL, *pinned = NULL, *spare_pinned = NULL;
    void *spare = NULL, *pageable = NULL, *opened = NULL;
    cudaIpcMemHandle_t handle = cudaIpcMemHandle_t();
    cudaGraphExec_t graph = NULL;
    std::atomic<bool> inside{false}, returned{false}, open{false}; /* open: the word is written */
    std::atomic<long> calls{0};
};

typedef std::function<void(place &)> step;

struct question {
    const char *name, *what;
    const char *setting; /* of the environment */
    step prepare, call;
};

/* Repeat a call until A is open. */
static step until_open(const std::function<cudaError_t(place &)> &call)
{
    return [call](place &p) {
        while (p.calls < MOST_CALLS && !p.open) {
            need(call(p), "a call");
            p.calls++;
        }
    };
}

static step once(const std::function<cudaError_t(place &)> &call)
{
    return [call](place &p) { need(call(p), "the call"); };
}

static void nothing(place &)
{
}

/* ---- memory of another process ---- */

/* The other process: print a handle, and stay as long as the one that has asked. */
static int owner(void)
{
    void *memory = NULL;
    cudaIpcMemHandle_t handle;
    const pid_t parent = getppid();
    need(cudaMalloc(&memory, 2 << 20), "device memory");
    need(cudaIpcGetMemHandle(&handle, memory), "cudaIpcGetMemHandle");
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(&handle);
    for (size_t i = 0; i < sizeof handle; i++) {
        std::printf("%02x", bytes[i]);
    }
    std::printf("\n");
    std::fflush(stdout);
    while (getppid() == parent) {
        sleep_ms(20);
    }
    return 0;
}

static void ask_owner(place &p)
{
    char self[4096], hex[3] = "";
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    FILE *from = popen((std::string("exec '") + self + "' --owner").c_str(), "r");
    unsigned char *bytes = reinterpret_cast<unsigned char *>(&p.handle);
    for (size_t i = 0; i < sizeof p.handle; i++) {
        if (from == NULL || std::fread(hex, 1, 2, from) != 2 || hex[0] == '#') {
            give_up("IPC", "the other process gives no handle");
        }
        bytes[i] = (unsigned char)std::strtoul(hex, NULL, 16);
    }
}

static void open_handle(place &p)
{
    need(cudaIpcOpenMemHandle(&p.opened, p.handle, cudaIpcMemLazyEnablePeerAccess),
         "cudaIpcOpenMemHandle");
}

static void ask_and_open(place &p)
{
    ask_owner(p);
    open_handle(p);
}

/* A graph of one kernel. */
static void capture(place &p)
{
    cudaGraph_t graph = NULL;
    need(cudaStreamBeginCapture(p.idle, cudaStreamCaptureModeThreadLocal), "a capture");
    need(launch_known(p.device, p.idle), "a launch");
    need(cudaStreamEndCapture(p.idle, &graph), "a capture's end");
    need(cudaGraphInstantiate(&p.graph, graph, 0), "a graph");
}

/* ---- the questions ---- */

static std::vector<question> all_questions(void)
{
    std::vector<question> all;
    const auto add = [&](const char *name, const char *what, const step &call,
                         const step &prepare = nothing, const char *setting = "") {
        all.push_back(question{name, what, setting, prepare, call});
    };
    const step launch = once([](place &p) { return launch_known(p.device, p.a); });
    const step first = once([](place &p) { return launch_new(p.device, p.idle); });
    add("none", "no call", [](place &p) { holds([&] { return p.open.load(); }, 2 * HOLD_MS); });
    add("launch", "a launch on A", launch);
    add("blocking", "a launch on A, CUDA_LAUNCH_BLOCKING=1", launch, nothing,
        "CUDA_LAUNCH_BLOCKING=1");
    add("launches", "launches on A",
        until_open([](place &p) { return launch_known(p.device, p.a); }));
    add("copies", "copies on A", until_open([](place &p) {
            return cudaMemcpyAsync(p.device, p.pinned, 64, cudaMemcpyHostToDevice, p.a);
        }));
    add("events", "events recorded on A",
        until_open([](place &p) { return cudaEventRecord(p.event, p.a); }));
    add("waits", "values waited for on A", until_open([](place &p) {
            stream_waits(p.a, p.gate);
            return cudaSuccess;
        }));
    add("graphs", "graphs launched on A",
        until_open([](place &p) { return cudaGraphLaunch(p.graph, p.a); }), capture);
    add("first", "a kernel's first launch, on another stream", first);
    add("first-eager", "the same, CUDA_MODULE_LOADING=EAGER", first, nothing,
        "CUDA_MODULE_LOADING=EAGER");
    add("cudaMalloc", "cudaMalloc", once([](place &p) { return cudaMalloc(&p.opened, 8 << 20); }));
    add("cudaFree", "cudaFree", once([](place &p) { return cudaFree(p.spare); }));
    add("cudaHostAlloc", "cudaHostAlloc",
        once([](place &p) { return cudaHostAlloc(&p.opened, 1 << 20, cudaHostAllocMapped); }));
    add("cudaFreeHost", "cudaFreeHost",
        once([](place &p) { return cudaFreeHost(p.spare_pinned); }));
    add("cudaHostRegister", "cudaHostRegister", once([](place &p) {
            return cudaHostRegister(p.pageable, 1 << 20, cudaHostRegisterMapped);
        }));
    add("cudaHostUnregister", "cudaHostUnregister",
        once([](place &p) { return cudaHostUnregister(p.pageable); }), once([](place &p) {
            return cudaHostRegister(p.pageable, 1 << 20, cudaHostRegisterMapped);
        }));
    add("pool", "cudaMallocAsync and cudaFreeAsync on another stream", once([](place &p) {
            const cudaError_t error = cudaMallocAsync(&p.opened, 1 << 20, p.idle);
            return error != cudaSuccess ? error : cudaFreeAsync(p.opened, p.idle);
        }));
    add("pool-a", "cudaMallocAsync and cudaFreeAsync on A", once([](place &p) {
            const cudaError_t error = cudaMallocAsync(&p.opened, 1 << 20, p.a);
            return error != cudaSuccess ? error : cudaFreeAsync(p.opened, p.a);
        }));
    add("device", "cudaDeviceSynchronize", once([](place &) { return cudaDeviceSynchronize(); }));
    add("stream", "cudaStreamSynchronize(A)",
        once([](place &p) { return cudaStreamSynchronize(p.a); }));
    add("event", "cudaEventSynchronize, behind A",
        once([](place &p) { return cudaEventSynchronize(p.event); }));
    add("create", "cudaStreamCreateWithFlags", once([](place &) {
            cudaStream_t made = NULL;
            return cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
        }));
    add("destroy", "cudaStreamDestroy of an idle stream",
        once([](place &p) { return cudaStreamDestroy(p.idle); }));
    add("open", "cudaIpcOpenMemHandle", open_handle, ask_owner);
    add("close", "cudaIpcCloseMemHandle",
        once([](place &p) { return cudaIpcCloseMemHandle(p.opened); }), ask_and_open);
    add("memcpy", "cudaMemcpy of pageable memory", once([](place &p) {
            return cudaMemcpy(p.spare, p.pageable, 1 << 20, cudaMemcpyHostToDevice);
        }));
    add("memcpy-a", "cudaMemcpyAsync of pageable memory on A", once([](place &p) {
            return cudaMemcpyAsync(p.spare, p.pageable, 1 << 20, cudaMemcpyHostToDevice, p.a);
        }));
    add("memcpy-home", "cudaMemcpyAsync to pageable memory on A", once([](place &p) {
            return cudaMemcpyAsync(p.pageable, p.spare, 1 << 10, cudaMemcpyDeviceToHost, p.a);
        }));
    add("first-a", "a kernel's first launch, on A",
        once([](place &p) { return launch_new(p.device, p.a); }));
    return all;
}

/* ---- an answer ---- */

/* What the second thread does, in this order. */
static const char *const acts[] = {"a copy to the device",
                                   "a copy to the host",
                                   "a launch",
                                   "cudaEventRecord",
                                   "the end of the first copy",
                                   "the end of the second copy",
                                   "the end of the known kernel",
                                   "a written value",
                                   "done"};
enum { DONE = sizeof acts / sizeof acts[0] - 1 };

struct second {
    cudaStream_t up, down, kernels;
    cudaEvent_t events[3];
    word value;
    std::atomic<int> act{0};
    std::atomic<bool> began{false};
    std::atomic<double> took{0};
};

static void work(second &s, place &p)
{
    unsigned *other = p.device + 256;
    s.act = 0;
    need(cudaMemcpyAsync(other, p.pinned + 256, 256, cudaMemcpyHostToDevice, s.up), "a copy");
    s.act++;
    need(cudaMemcpyAsync(p.pinned + 512, p.device + 512, 256, cudaMemcpyDeviceToHost, s.down),
         "a copy");
    s.act++;
    need(launch_known(other, s.kernels), "a launch");
    s.act++;
    need(cudaEventRecord(s.events[0], s.up), "an event");
    need(cudaEventRecord(s.events[1], s.down), "an event");
    need(cudaEventRecord(s.events[2], s.kernels), "an event");
    s.act++;
    for (cudaEvent_t event : s.events) {
        holds([&] { return cudaEventQuery(event) == cudaSuccess; }, 1e6);
        s.act++;
    }
    s.value.write(0);
    stream_writes(s.kernels, s.value);
    holds([&] { return s.value.read() == 1; }, 1e6);
    s.act++;
}

/* The second thread: begin once the main thread's call has returned, or blocks. */
static void second_thread(second &s, place &p)
{
    holds([&] { return p.inside.load(); }, 1e6);
    long seen = -1;
    while (!p.returned && seen != p.calls) {
        seen = p.calls;
        sleep_ms(STILL_MS);
    }
    s.began = true;
    const double begin = now_ms();
    work(s, p);
    s.took = now_ms() - begin;
    p.open = true;
    p.gate.write(1);
}

static void set_up(place &p, second &s, const question &q)
{
    p.a = stream_of(false);
    p.idle = stream_of(false);
    p.event = event_of();
    need(cudaMalloc(reinterpret_cast<void **>(&p.device), 4096), "device memory");
    need(cudaMalloc(&p.spare, 4 << 20), "device memory");
    need(cudaHostAlloc(reinterpret_cast<void **>(&p.pinned), 4096, cudaHostAllocMapped), "pinned");
    need(cudaHostAlloc(reinterpret_cast<void **>(&p.spare_pinned), 1 << 20, cudaHostAllocMapped),
         "pinned memory");
    if (posix_memalign(&p.pageable, 4096, 1 << 20) != 0) {
        give_up("set up", "no memory");
    }
    std::memset(p.pageable, 1, 1 << 20);
    s.up = stream_of(true);
    s.down = stream_of(true);
    s.kernels = stream_of(true);
    for (cudaEvent_t &event : s.events) {
        event = event_of();
    }
    work(s, p); /* once, so that what is loaded or made at first is there */
    need(launch_known(p.device, p.a), "a launch");
    need(launch_known(p.device, p.idle), "a launch");
    q.prepare(p);
    need(cudaDeviceSynchronize(), "set up");
    stream_waits(p.a, p.gate);
    need(cudaEventRecord(p.event, p.a), "an event");
}

static std::string main_thread(const place &p, bool before, double took)
{
    char text[96];
    if (p.calls > 0 && before) {
        std::snprintf(text, sizeof text, "%ld, and none blocked", p.calls.load());
    } else if (p.calls > 0) {
        std::snprintf(text, sizeof text, "number %ld blocked", p.calls.load());
    } else {
        std::snprintf(text, sizeof text, "returned after %.1f ms, %s the word", took,
                      before ? "before" : "behind");
    }
    return text;
}

static int answer(const question &q)
{
    place p;
    second s;
    set_up(p, s, q);
    std::thread other([&] { second_thread(s, p); });
    std::atomic<double> held{0};
    std::atomic<int> held_at{DONE};
    std::atomic<bool> over{false};
    std::thread watchdog([&] {
        holds([&] { return s.began.load(); }, 1e6);
        if (!holds([&] { return p.open.load(); }, HOLD_MS)) {
            held_at = s.act.load();
            held = HOLD_MS;
            p.open = true;
            p.gate.write(1);
        }
        if (!holds([&] { return over.load(); }, 3000)) {
            std::printf("| %s | no end, though the word was written | stands at %s |\n", q.what,
                        acts[s.act]);
            std::fflush(stdout);
            _exit(0);
        }
    });
    const double begin = now_ms();
    p.inside = true;
    q.call(p);
    const double took = now_ms() - begin;
    const bool before = !p.open || p.calls == MOST_CALLS;
    p.returned = true;
    other.join();
    need(cudaStreamSynchronize(p.a), "A");
    over = true;
    watchdog.join();
    if (held_at != DONE) {
        std::printf("| %s | %s | **held** at %s for %.0f ms; ended by the watchdog |\n", q.what,
                    main_thread(p, before, took).c_str(), acts[held_at], held.load());
    } else {
        std::printf("| %s | %s | through in %.2f ms |\n", q.what,
                    main_thread(p, before, took).c_str(), s.took.load());
    }
    std::fflush(stdout);
    _exit(0); /* whatever the question has left behind */
}

/* ---- all of them ---- */

static int one_case(const std::string &name)
{
    int number = 0;
    char priority[16] = "";
    for (const question &q : all_questions()) {
        if (name == q.name) {
            return answer(q);
        }
    }
    if (std::sscanf(name.c_str(), "queues:%d:%15s", &number, priority) == 2) {
        return queues(std::to_string(number).c_str(), std::strcmp(priority, "greatest") == 0);
    }
    std::fprintf(stderr, "probe: there is no case '%s'\n", name.c_str());
    return 2;
}

static std::vector<std::string> queue_cases(void)
{
    std::vector<std::string> names;
    for (const char *connections : {"1", "8", "32"}) {
        for (const char *priority : {"normal", "greatest"}) {
            names.push_back(std::string("queues:") + connections + ":" + priority);
        }
    }
    return names;
}

/* Ask in a process of its own. Return true if there is an answer. */
static bool asked(const std::string &name, const std::string &setting, double end, int columns)
{
    const char *why = "not reached: the time is up";
    int status = 125;
    if (now_ms() < end) {
        status = ask({"probe", "--case", name}, setting, LIMIT_S);
        why = status == 124 ? "no end within 12 s; killed" : "failed";
    }
    if (status != 0) {
        std::printf("| %s %s | %s", name.c_str(), setting.c_str(), why);
        for (int i = 2; i < columns; i++) {
            std::printf(" | -");
        }
        std::printf(" |\n");
    }
    std::fflush(stdout);
    return status == 0 || status == 124;
}

static int all_cases(double seconds)
{
    const double end = now_ms() + 1000 * seconds;
    bool good = true;
    std::printf(
        "A stream A waits for a word. Before a second thread writes it, it copies, launches, "
        "polls\nand writes a value, on streams of its own, while the main thread makes a "
        "call.\n\n| the call | the main thread | the second thread |\n"
        "| --- | --- | --- |\n");
    for (const question &q : all_questions()) {
        good = asked(q.name, q.setting, end, 3) && good;
    }
    queues_head();
    for (const std::string &name : queue_cases()) {
        const std::string connections = name.substr(7, name.rfind(':') - 7);
        good = asked(name, "CUDA_DEVICE_MAX_CONNECTIONS=" + connections, end, 6) && good;
    }
    return good ? 0 : 1;
}

int main(int argc, char **argv)
{
    const std::string how = argc > 1 ? argv[1] : "";
    if (argc == 1) {
        return all_cases(1e6);
    }
    if (how == "--seconds" && argc == 3) {
        return all_cases(std::atof(argv[2]));
    }
    if (how == "--case" && argc == 3) {
        return one_case(argv[2]);
    }
    if (how == "--owner" && argc == 2) {
        return owner();
    }
    if (how == "--list" && argc == 2) {
        for (const question &q : all_questions()) {
            std::printf("%s\n", q.name);
        }
        for (const std::string &name : queue_cases()) {
            std::printf("%s\n", name.c_str());
        }
        return 0;
    }
    std::fprintf(stderr, "usage: probe [--seconds N] | --list | --case NAME\n");
    return 2;
}

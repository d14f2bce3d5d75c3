/* probe_queues.h - a part of probe.cu: how many streams may wait for a word, each with a copy to
 * the host behind it, before work of a further stream does not go through. A device has few
 * hardware queues (CUDA_DEVICE_MAX_CONNECTIONS), and a stream that shares one with a waiting stream
 * may wait with it. */
#ifndef DCOMM_PROBE_QUEUES_H
#define DCOMM_PROBE_QUEUES_H

#include "probe.h"

static const int MOST_WAITING = 40;
static const double PATIENCE_MS = 40; /* a copy, or a kernel, takes some 10 us */

/* The call that this process is in, and the number of streams that wait: where one blocks, they are
 * the answer. */
static std::atomic<const char *> inside{"the start"};
static std::atomic<int> waiting_now{0};
static const double QUEUES_LIMIT_MS = 8000;

/* A stream that is tried with one kind of work. */
struct trial {
    bool copies;
    cudaStream_t stream;
    cudaEvent_t event;
    int first, stuck; /* the first number of waiting streams that it did not get past; how many */
    bool dead;        /* it has work that waits */
};

static trial trial_of(bool copies, bool greatest)
{
    inside = "a stream's creation";
    return trial{copies, stream_of(greatest), event_of(), -1, 0, false};
}

static bool gets_through(trial &t, unsigned *device, unsigned *pinned, double patience)
{
    inside = t.copies ? "a copy" : "a launch";
    if (t.copies) {
        need(cudaMemcpyAsync(device, pinned, 64, cudaMemcpyHostToDevice, t.stream), "a copy");
        need(cudaMemcpyAsync(pinned, device, 64, cudaMemcpyDeviceToHost, t.stream), "a copy");
    } else {
        need(launch_known(device, t.stream), "a launch");
    }
    need(cudaEventRecord(t.event, t.stream), "an event");
    inside = "cudaEventQuery";
    return holds([&] { return cudaEventQuery(t.event) == cudaSuccess; }, patience);
}

static void attempt(trial &t, int waiting, unsigned *device, unsigned *pinned)
{
    if (t.dead || !gets_through(t, device, pinned, PATIENCE_MS)) {
        t.first = t.first < 0 ? waiting : t.first;
        t.stuck++;
        t.dead = true;
    }
}

static std::string of_trial(const trial &t)
{
    char text[64];
    if (t.first < 0) {
        std::snprintf(text, sizeof text, "never up to %d", MOST_WAITING);
    } else {
        std::snprintf(text, sizeof text, "from %d; %d of %d", t.first, t.stuck, MOST_WAITING);
    }
    return text;
}

/* Print a row: from how many waiting streams on a copy, and a kernel, did not go through on a
 * stream that was made before them, and on one that was made after them. */
static int queues(const char *connections, bool greatest)
{
    unsigned *device = NULL, *pinned = NULL, *results = NULL;
    const word gate;
    need(cudaHostAlloc(reinterpret_cast<void **>(&results), 4096, cudaHostAllocMapped), "pinned");
    need(cudaMalloc(reinterpret_cast<void **>(&device), 4096), "device memory");
    need(cudaHostAlloc(reinterpret_cast<void **>(&pinned), 4096, cudaHostAllocMapped), "pinned");
    trial before[2] = {trial_of(true, greatest), trial_of(false, greatest)};
    trial after[2] = {trial_of(true, greatest), trial_of(false, greatest)};
    for (trial &t : before) {
        if (!gets_through(t, device, pinned, 1000)) {
            give_up("queues", "work did not go through though no stream waits");
        }
    }
    std::thread watchdog([&] {
        sleep_ms(QUEUES_LIMIT_MS);
        std::printf("| %s | %s | %s | %s | %s | %s: %d streams wait, and the process stands in %s "
                    "|\n",
                    connections, greatest ? "greatest" : "normal", of_trial(before[0]).c_str(),
                    of_trial(before[1]).c_str(), of_trial(after[0]).c_str(),
                    of_trial(after[1]).c_str(), waiting_now.load(), inside.load());
        std::fflush(stdout);
        _exit(0);
    });
    watchdog.detach();
    for (int waiting = 1; waiting <= MOST_WAITING; waiting++) {
        waiting_now = waiting;
        inside = "a stream's creation, or its wait";
        cudaStream_t held = stream_of(false);
        stream_waits(held, gate);
        inside = "a copy behind a wait";
        need(cudaMemcpyAsync(results + waiting, device + 64, 4, cudaMemcpyDeviceToHost, held),
             "a copy behind a wait");
        for (int i = 0; i < 2; i++) {
            trial late = trial_of(after[i].copies, greatest);
            attempt(before[i], waiting, device, pinned);
            attempt(late, waiting, device, pinned);
            if (late.dead) {
                after[i].first = after[i].first < 0 ? waiting : after[i].first;
                after[i].stuck++;
            } else {
                inside = "a stream's end";
                need(cudaStreamDestroy(late.stream), "a stream's end");
            }
        }
    }
    gate.write(1);
    inside = "the end";
    need(cudaDeviceSynchronize(), "the end");
    std::printf("| %s | %s | %s | %s | %s | %s |\n", connections, greatest ? "greatest" : "normal",
                of_trial(before[0]).c_str(), of_trial(before[1]).c_str(),
                of_trial(after[0]).c_str(), of_trial(after[1]).c_str());
    std::fflush(stdout);
    return 0;
}

static void queues_head(void)
{
    std::printf(
        "\nStreams that wait, each with a copy behind it, and a copy or a kernel on a further\n"
        "stream that was made before or after them: from how many waiting streams on it\n"
        "did not go through, and for how many numbers of them.\n\n"
        "| CUDA_DEVICE_MAX_CONNECTIONS | priority | copy, before | kernel, before | "
        "copy, after | kernel, after |\n| --- | --- | --- | --- | --- | --- |\n");
}

#endif

"""libraries.py - the libraries that compare.py runs: how each is found, built, started, measured."""
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CLUSTER = ROOT / "bench" / "cluster.sh"
PEERS = ["openmpi", "mpich", "gloo", "ucc", "intelmpi", "oneccl"]
NO_YIELD = {"mpich"}  # it only spins, however many ranks share a core
# No libraries: what none can beat (limit-perf.c), and the loops of one alone (bare-perf.c).
LIMIT, BARE = "limit", "bare"
YARDSTICKS = {LIMIT: {"allreduce", "alltoall"}, BARE: {"allreduce"}}
GLOO_OPS = {"allreduce", "allgather", "broadcast", "alltoall"}


class Failure(Exception):
    """A sentence for the user; the exit status, where a program's."""

    def __init__(self, text, status=None):
        super().__init__(text)
        self.status = status


def run(command, timeout, env=None):
    """Output of a command; Failure where it fails. Ranks of a run that hangs are ended too: first
    by the launcher, which knows them, then by force."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env=env,
                               start_new_session=True)
    shown = shlex.join(map(str, command))
    try:
        output, _ = process.communicate(timeout=timeout)
    except BaseException as error:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise Failure(f"not done after {timeout:g} s: {shown}") from None
        raise
    if process.returncode != 0:
        raise Failure(f"exit status {process.returncode}: {shown}\n{output.strip()}",
                      process.returncode)
    return output


def build(name, folder):
    """Launcher, program and environment of a peer, or of a probe of the machine; Failure where it
    is missing."""
    done = subprocess.run([HERE / "build.sh", name, folder], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure(done.stderr.strip())
    launcher, program, *variables = done.stdout.splitlines()
    return launcher, program, dict(line.split("=", 1) for line in variables)


def cores():
    return sorted(os.sched_getaffinity(0))


def busy_cores():
    """How many cores others keep busy now. The load average would count our own last run too."""
    def ticks():
        with open("/proc/stat", encoding="ascii") as file:
            values = [int(text) for text in file.readline().split()[1:9]]
        return sum(values), values[3] + values[4]  # all, idle
    total, idle = ticks()
    time.sleep(0.5)
    total, idle = (after - before for after, before in zip(ticks(), (total, idle)))
    return (1 - idle / max(total, 1)) * (os.cpu_count() or 1)


class Probes:
    """The machine's own speed, measured beside the libraries: how far apart the first two cores
    are, and how fast they copy."""

    def __init__(self, folder):
        self.trips_ns, self.copy_one, self.copy_two = [], [], []
        self.pair = [str(core) for core in cores()[:2]]
        self.programs = None
        if len(self.pair) == 2:
            try:
                self.programs = [build(name, folder)[1] for name in ("core-pair", "core-copy")]
            except Failure:
                pass

    def trip(self):
        if self.programs:
            self.trips_ns.append(float(run([self.programs[0]] + self.pair, 60)))

    def copy(self):
        if self.programs:
            words = run([self.programs[1]] + self.pair, 60).split()
            self.copy_one.append(float(words[-2]))
            self.copy_two.append(float(words[-1]))


# ---- starting ranks ----

def on_cluster(name, args):
    command = [str(CLUSTER), "--peer", name, "--ranks-per-host", str(args.ranks_per_host),
               "--order", args.order, "--build", str(args.build)]
    if name == "gloo":
        command += ["--bind", "none"]
    return command + ["--timeout", str(int(args.timeout)), "--"]


def on_this_machine(name, launcher, ranks, args):
    """Rank i on core i, round robin where there are more ranks than cores."""
    crowded = ranks > len(cores())
    if name in ("dcomm", "gloo", *YARDSTICKS):
        # Gloo's I/O thread and its rank would take turns on one core, at the scheduler's pace.
        bind = "none" if name == "gloo" else "core"
        return [str(args.build / "dcomm-run"), "-n", str(ranks), "--bind", bind, "--"]
    more = shlex.split(args.peer_args.get(name, ""))
    if name == "mpich":
        return [launcher, "-n", str(ranks), "-bind-to", "core"] + more
    if name in ("intelmpi", "oneccl"):
        return [launcher, "-n", str(ranks), "-genv", "I_MPI_FABRICS", "shm"] + more
    command = [launcher, "-n", str(ranks), "--map-by", "core",
               "--bind-to", "core:overload-allowed" if crowded else "core",
               "--mca", "pml", "ob1", "--mca", "btl", "vader,self"]
    if crowded:
        command.append("--oversubscribe")
    if name == "ucc" and (crowded or args.yields):
        command += ["-x", "PEER_YIELD=1"]
    if crowded or args.yields:
        command += ["--mca", "mpi_yield_when_idle", "1"]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    return command + more


class Side:
    """One library, or one algorithm of dcomm, ready to be run."""

    def __init__(self, name, built, op, ranks, mem, args, algo="auto"):
        launcher, program, self.variables = built
        self.name, self.cores, self.version = name, None, None
        family = name.split(":")[0]
        # What cluster.sh adds to the launcher's command line.
        self.more = {family.upper() + "_ARGS": args.peer_args.get(family, "")}
        start = (on_cluster(family, args) if args.hosts
                 else on_this_machine(family, launcher, ranks, args))
        self.command = start + [program, op]
        if family == "dcomm":
            self.command += ["--algo", algo, "--mem", mem[0]]
        else:
            self.command += ["--mem", mem[1]]
        self.command += ["--rotate", str(args.rotate)]
        if family == LIMIT:
            self.command += ["-c", "0"]  # it computes nothing
        if args.iterations:
            self.command += ["-n", str(args.iterations)]
        if args.row:
            self.command += ["-m", str(args.row)]
        if args.warmup is not None:
            self.command += ["-w", str(args.warmup)]
        if args.inplace or op == "broadcast":  # MPI's broadcast has one buffer
            self.command.append("--inplace")

    def shown(self):
        return shlex.join(self.command).replace(f"{ROOT}/", "")

    def measure(self, size, timeout):
        """One run's only row."""
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "row.json")
            # mpirun's own variables, where this runs under one, would confuse the ranks.
            env = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_COMM_", "PMI"))}
            env.update(self.variables, **self.more)
            if self.name in ("gloo", *YARDSTICKS):
                env["PEER_STORE"] = folder
            run(self.command + ["-b", str(size), "-e", str(size), "--json", file], timeout, env)
            with open(file, encoding="utf-8") as opened:
                report = json.load(opened)
        if len(report["results"]) != 1:
            raise Failure(f"not one row but {len(report['results'])}: {self.shown()}")
        self.version = report["version"]
        self.cores = report.get("cores")
        return report


def forced_algorithms(wanted, built, op, ranks, mem, args):
    """Of the wanted algorithms of dcomm, or of all, those that do not refuse."""
    side = Side("dcomm", built, op, ranks, mem, args, "all")
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "rows.json")
        run(side.command + ["-b", "4K", "-e", "4K", "-n", "1", "-w", "0", "--json", file],
            args.timeout)
        with open(file, encoding="utf-8") as opened:
            able = [row["algo"] for row in json.load(opened)["results"]]
    names = able if wanted == "all" else wanted.split(",")
    for name in set(names) - set(able):
        print(f"MISSING: dcomm has no {name} for {op} of {ranks} ranks", file=sys.stderr)
    return [name for name in names if name in able]


def goodput(args):
    """Bytes per second over a link of the cluster."""
    words = run([str(CLUSTER), "--limit", "--build", str(args.build)], 120).split()
    return float(words[words.index("bytes/s") - 1])


def link_limit_us(op, size, hosts, per_host, rate):
    """What the links alone need: each host must send and take in so many bytes."""
    times = {"allreduce": 2, "allgather": 1, "reduce_scatter": 1, "alltoall": per_host}
    return times[op] * (hosts - 1) / hosts * size / rate * 1e6 if op in times else None

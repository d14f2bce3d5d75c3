/* perf_out.h - the output of dcomm-perf: the table and the JSON. */
#ifndef PERF_OUT_H
#define PERF_OUT_H

#include "perf_args.h"
#include "perf_case.h"
#include "perf_json.h"
#include "perf_rates.h"

typedef struct perf_run {
    const perf_args *args;
    dcomm_comm *comm;
    int rank, nranks;
    dcomm_codec *codec; /* NULL: exact */
    tool_out out;
    perf_json json;
    perf_rates rates;
    uint64_t wrong;
    busy_seen busy; /* rank 0's */
} perf_run;

typedef struct perf_row {
    char algo[64], codec[320];
    double min_s, median_s; /* NaN: not measured */
    uint64_t wire_bytes, hash;
    perf_errors errors;
    bool checked;
    dcomm_codec_report report; /* report of this rank; all 0 without a codec */
} perf_row;

static void perf_cpu_name(char name[128])
{
    snprintf(name, 128, "unknown CPU");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (file == NULL) {
        return;
    }
    for (char line[256]; fgets(line, sizeof line, file) != NULL;) {
        if (sscanf(line, "model name : %127[^\n]", name) == 1) {
            break;
        }
    }
    fclose(file);
}

static void perf_print_header(const perf_run *run)
{
    char cpu[128];
    perf_cpu_name(cpu);
    int hosts = 0;
    for (int r = 0; r < run->nranks; r++) {
        int host = dcomm_comm_host(run->comm, r) + 1;
        hosts = host > hosts ? host : hosts;
    }
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    printf("# dcomm %s: %s, %d rank%s on %d host%s\n", dcomm_version(),
           perf_ops[run->args->op].name, run->nranks, run->nranks == 1 ? "" : "s", hosts,
           hosts == 1 ? "" : "s");
    printf("# %s, %d cores\n", cpu, cores);
    dcomm_tuning tuning;
    if (hosts > 1 && dcomm_comm_get_tuning(run->comm, &tuning) == DCOMM_OK) {
        printf("# between hosts: %d connection%s for each pair of ranks\n", (int)tuning.connections,
               tuning.connections == 1 ? "" : "s");
    }
    if (run->args->mem != PERF_MEM_HOST) {
        printf("# memory: %s\n", perf_mem_names[run->args->mem]);
    }
    if (run->rates.pinned > 0) {
        printf("# copies by all ranks at once, each: %.3g GB/s out of the device and as much in,\n"
               "# %.3g GB/s within it\n",
               run->rates.pinned, run->rates.within);
    }
    printf("# time: of the slowest rank, over the iterations; algbw, busbw: from the median\n");
    if (run->args->wide) {
        printf("#%12s %12s %7s %6s  %-24s %11s %11s %8s %8s %8s %9s %9s %8s %12s  %s\n", "bytes",
               "count", "type", "redop", "algo", "min(us)", "median(us)", "algbw", "busbw", "wrong",
               "relerr", "bias", "ulp", "wire(B)", "hash");
    } else {
        printf("#%11s %6s %5s  %-22s %10s %10s %8s %8s %7s\n", "bytes", "type", "redop", "algo",
               "min(us)", "median(us)", "algbw", "busbw", "wrong");
    }
}

static void perf_start_json(perf_run *run)
{
    char cpu[128];
    perf_cpu_name(cpu);
    perf_json *j = &run->json;
    perf_json_open(j, NULL, '{');
    perf_json_int(j, "schema", 1);
    perf_json_text(j, "tool", "dcomm-perf");
    perf_json_text(j, "version", dcomm_version());
    perf_json_open(j, "hardware", '{');
    perf_json_text(j, "cpu", cpu);
    perf_json_int(j, "cores", sysconf(_SC_NPROCESSORS_ONLN));
    if (run->rates.pinned > 0) {
        perf_json_number(j, "pinned_GBps", run->rates.pinned);
        perf_json_number(j, "device_GBps", run->rates.within);
    }
    perf_json_close(j, '}');
    perf_json_open(j, "results", '[');
}

/* Print a number in `width` columns; a dash means that it was not measured. */
static void perf_print_number(int width, const char *format, double value)
{
    char text[32] = "-";
    if (!isnan(value)) {
        snprintf(text, sizeof text, format, value);
    }
    printf(" %*s", width, text);
}

static void perf_print_row(const perf_run *run, const perf_case *c, const perf_row *row,
                           double algbw)
{
    const perf_errors *e = &row->errors;
    const char *redop = perf_ops[c->op].reduces ? perf_redops[c->values.op] : "-";
    const char *dtype = perf_dtypes[c->values.dtype];
    bool wide = run->args->wide, measured = e->measured > 0;
    if (wide) {
        printf(" %12zu %12zu %7s %6s  %-24s", c->bytes, c->count, dtype, redop, row->algo);
    } else {
        printf(" %11zu %6s %5s  %-22s", c->bytes, dtype, redop, row->algo);
    }
    perf_print_number(wide ? 11 : 10, "%.2f", row->min_s * 1e6);
    perf_print_number(wide ? 11 : 10, "%.2f", row->median_s * 1e6);
    perf_print_number(8, "%.2f", algbw);
    perf_print_number(8, "%.2f", algbw * perf_bus_factor(c->op, c->nranks));
    perf_print_number(wide ? 8 : 7, "%.0f", row->checked ? (double)e->wrong : NAN);
    if (wide) {
        perf_print_number(9, "%.1e", measured ? e->relerr_max : NAN);
        perf_print_number(9, "%.1e", measured ? e->bias_sum / (double)e->measured : NAN);
        perf_print_number(8, "%.2f", measured ? e->ulp_max : NAN);
        printf(" %12" PRIu64 "  ", row->wire_bytes);
        printf(c->op != PERF_BARRIER ? "%016" PRIx64 : "-", row->hash);
    }
    printf("\n");
}

static void perf_report(perf_run *run, const perf_case *c, const perf_row *row)
{
    if (run->rank != 0) {
        return;
    }
    const perf_op_info *op = &perf_ops[c->op];
    const perf_errors *e = &row->errors;
    const char *redop = op->reduces ? perf_redops[c->values.op] : NULL;
    double algbw = c->bytes > 0 ? (double)c->bytes / row->median_s * 1e-9 : NAN;
    double busbw = algbw * perf_bus_factor(c->op, c->nranks);
    bool measured = e->measured > 0;
    double relerr = measured ? e->relerr_max : NAN;
    double bias = measured ? e->bias_sum / (double)e->measured : NAN;
    double ulp = measured ? e->ulp_max : NAN;
    double wrong = row->checked ? (double)e->wrong : NAN;
    bool has_result = c->op != PERF_BARRIER;

    perf_print_row(run, c, row, algbw);
    const dcomm_codec_report *r = &row->report;
    double fill = r->summed > 0 && r->kept > 0 ? (double)r->summed / (double)r->kept : NAN;
    if (!isnan(fill)) {
        printf("#   k %zu; the sum has %.3f k elements, of at most %d k; the result has %.3f k\n",
               r->kept, fill, c->nranks, (double)r->nonzero / (double)r->kept);
    }

    perf_json *j = &run->json;
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, row->hash);
    perf_json_open(j, NULL, '{');
    perf_json_text(j, "op", op->name);
    perf_json_text(j, "algo", row->algo);
    perf_json_text(j, "codec", row->codec);
    perf_json_text(j, "dtype", perf_dtypes[c->values.dtype]);
    if (redop != NULL) {
        perf_json_text(j, "redop", redop);
    } else {
        perf_json_null(j, "redop");
    }
    perf_json_int(j, "nranks", c->nranks);
    perf_json_int(j, "bytes", (int64_t)c->bytes);
    perf_json_int(j, "count", (int64_t)c->count);
    perf_json_bool(j, "inplace", c->in_place);
    perf_json_text(j, "mem", perf_mem_names[c->pool.mem]);
    perf_json_number(j, "time_us_min", row->min_s * 1e6);
    perf_json_number(j, "time_us_med", row->median_s * 1e6);
    perf_json_number(j, "algbw_GBps", algbw);
    perf_json_number(j, "busbw_GBps", busbw);
    perf_json_int(j, "wire_bytes", (int64_t)row->wire_bytes);
    perf_json_number(j, "relerr_max", relerr);
    perf_json_number(j, "bias_mean", bias);
    perf_json_number(j, "ulp_max", ulp);
    perf_json_number(j, "wrong", wrong);
    perf_json_number(j, "fill_in", fill);
    perf_json_number(j, "fill_in_share", fill / c->nranks);
    perf_json_number(j, "result_fill", (double)r->nonzero / (isnan(fill) ? NAN : (double)r->kept));
    if (has_result) {
        perf_json_text(j, "hash", hash);
    } else {
        perf_json_null(j, "hash");
    }
    perf_json_close(j, '}');
}

/* End the table and the JSON. */
static void perf_finish(perf_run *run)
{
    const bool was = busy_print(&run->busy);
    perf_json_close(&run->json, ']');
    perf_json_bool(&run->json, "busy", was);
    perf_json_close(&run->json, '}');
    if (run->json.file != NULL) {
        fputc('\n', run->json.file);
    }
}

#endif

/* tool.h - shared by the tools: exit statuses, --version, usage errors, outputs.
 *
 * An output is a file, or "-" for standard output. With "-", text for people goes to standard
 * error. Outputs are opened before anything is measured. If an output or standard output cannot be
 * written, the tool ends with TOOL_USAGE and an error message. */
#ifndef TOOL_H
#define TOOL_H

#ifndef DCOMM_VERSION_STRING
#include "../include/dcomm/base.h"
#endif
#include "numbers.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <unistd.h>

enum { TOOL_GOOD = 0, TOOL_WRONG = 1, TOOL_USAGE = 2, TOOL_COMM = 3 };
enum { TOOL_COLUMNS = 98 };

/* Lines of each tool's --help. */
#define TOOL_VERSION_HELP "print the version"
#define TOOL_USAGE_HELP "2 usage, or an output cannot be written"

static bool tool_is_rank;      /* the tool runs as one of several ranks: one prints errors */
static bool tool_stdout_taken; /* "-" was opened */

/* Begin main. Lines are written one by one, also to a pipe. A pipe without a reader is an error,
 * not a signal. */
static inline void tool_begin(bool is_rank)
{
    tool_is_rank = is_rank;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    signal(SIGPIPE, SIG_IGN);
}

/* Return true if this rank prints errors. The environment decides, because there may be no
 * communicator yet. */
static inline bool tool_is_first(void)
{
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof names[0] && tool_is_rank; i++) {
        const char *value = getenv(names[i]);
        if (value != NULL) {
            return strcmp(value, "0") == 0;
        }
    }
    return true;
}

/* ---- sentences ---- */

/* Print a text from `column` on, and end its line. Break it between words into lines that begin
 * with `indent` spaces. */
static inline void tool_fold(FILE *to, size_t column, size_t indent, const char *text)
{
    char lines[6000];
    size_t at = 0, gap = 0;
    for (const char *word = text; *word != '\0';) {
        size_t length = strcspn(word, " ");
        if (at > sizeof lines / 2) {
            fwrite(lines, 1, at, to);
            at = 0;
        }
        if (gap > 0 && column + gap + length > TOOL_COLUMNS) {
            at += (size_t)sprintf(lines + at, "\n%*s", (int)indent, "");
            column = indent;
        } else {
            at += (size_t)sprintf(lines + at, "%*s", (int)gap, "");
            column += gap;
        }
        length = length < sizeof lines / 3 ? length : sizeof lines / 3;
        memcpy(lines + at, word, length);
        at += length;
        column += length;
        gap = strspn(word + length, " ");
        gap = gap < TOOL_COLUMNS ? gap : TOOL_COLUMNS;
        word += length + strspn(word + length, " ");
    }
    lines[at++] = '\n';
    fwrite(lines, 1, at, to);
}

/* Print a text of several lines, and fold each line. Continuation lines are indented `more`
 * columns beyond the line's first word (behind spaces and a number, if there is one). */
static inline void tool_fold_lines(FILE *to, const char *text, size_t more)
{
    for (const char *line = text; *line != '\0';) {
        const size_t start = strspn(line, " 0123456789"), length = strcspn(line, "\n");
        char *one = strndup(line + start, length - start);
        fprintf(to, "%.*s", (int)start, line);
        tool_fold(to, start, start + more, one != NULL ? one : "(no memory)");
        free(one);
        line += length + (line[length] == '\n');
    }
}

/* Print "TOOL: SENTENCE" on standard error. */
__attribute__((format(printf, 1, 2))) static inline void tool_say(const char *format, ...)
{
    char text[3000];
    va_list args;
    int used = snprintf(text, 100, "%.60s: ", program_invocation_short_name);
    va_start(args, format);
    vsnprintf(text + used, sizeof text - (size_t)used, format, args);
    va_end(args);
    tool_fold(stderr, 0, 2, text);
}

/* Print an error about the command line. Only the first rank prints. The others wait, because a
 * launcher ends all ranks when one ends. Return TOOL_USAGE. */
static inline int tool_refuse(const char *what, const char *value)
{
    if (tool_is_first()) {
        tool_say("%s%s%s (--help shows the options)", what, value != NULL ? ": " : "",
                 value != NULL ? value : "");
    } else {
        sleep(1);
    }
    return TOOL_USAGE;
}

/* Print an error about the value of option `c` of getopt_long, with the allowed values. Return
 * TOOL_USAGE. */
static inline int tool_refuse_value(int c, const struct option *longs, const char *value)
{
    char option[400];
    snprintf(option, sizeof option, "-%c", c);
    for (; longs->name != NULL; longs++) {
        if (longs->val == c) {
            snprintf(option, sizeof option, "--%.90s", longs->name);
        }
    }
    snprintf(option + strlen(option), sizeof option - strlen(option), " %.200s", value);
    return tool_refuse(option,
                       numbers_wanted[0] != '\0' ? numbers_wanted : "not a value of this option");
}

/* Print an error about an option that getopt_long did not know or that had no value. Return
 * TOOL_USAGE. */
static inline int tool_refuse_option(char **argv)
{
    return tool_refuse("unknown option, or its value is missing", argv[optind - 1]);
}

static inline void tool_print_version(void)
{
    if (tool_is_first()) {
        printf("%s %s\n", program_invocation_short_name, DCOMM_VERSION_STRING);
    }
}

/* Answer --help of a tool whose ranks parse alike: the first rank prints it. Return TOOL_GOOD. */
static inline int tool_show_help(void (*help)(void), bool *done)
{
    if (tool_is_first()) {
        help();
    }
    *done = true;
    return TOOL_GOOD;
}

/* Answer --version. Return TOOL_GOOD. */
static inline int tool_show_version(bool *done)
{
    tool_print_version();
    *done = true;
    return TOOL_GOOD;
}

/* ---- outputs ---- */

typedef struct tool_out {
    FILE *file; /* NULL: there is none */
    const char *path;
} tool_out;

/* Print an error about an output. `error` is an errno; 0 means that it is unknown, because an
 * earlier write failed. */
static inline void tool_cannot_write(const char *path, int error)
{
    tool_say("cannot write %s: %s", strcmp(path, "-") == 0 ? "standard output" : path,
             error != 0 ? strerror(error) : "its disk is full, or nobody reads it");
}

/* Open an output; path NULL means none. Return false after an error message. */
static inline bool tool_open(tool_out *o, const char *path)
{
    *o = (tool_out){.path = path};
    if (path == NULL) {
        return true;
    }
    if (strcmp(path, "-") != 0) {
        o->file = fopen(path, "we");
    } else if (tool_stdout_taken) {
        tool_say("only one output can be \"-\", standard output");
        return false;
    } else {
        tool_stdout_taken = true;
        fflush(stdout);
        int fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
        o->file = fd >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0 ? fdopen(fd, "w") : NULL;
    }
    if (o->file == NULL) {
        tool_cannot_write(path, errno);
    }
    return o->file != NULL;
}

/* Return a name by which other code can open this output as a file. */
static inline const char *tool_path(const tool_out *o, char text[40])
{
    snprintf(text, 40, "/proc/self/fd/%d", fileno(o->file));
    return text;
}

/* Write the rest of an output and close it. Return false after an error message. */
static inline bool tool_close(tool_out *o)
{
    if (o->file == NULL) {
        return true;
    }
    errno = 0;
    bool bad = fflush(o->file) != 0 || ferror(o->file) != 0;
    int error = errno;
    bad = fclose(o->file) != 0 || bad;
    o->file = NULL;
    if (bad) {
        tool_cannot_write(o->path, error != 0 ? error : errno);
    }
    return !bad;
}

/* Return true if standard output was written completely. Print an error the first time that it was
 * not. */
static inline bool tool_printed(void)
{
    static bool said;
    errno = 0;
    if (fflush(stdout) == 0 && ferror(stdout) == 0) {
        return true;
    }
    if (!said) {
        tool_cannot_write("-", errno);
        said = true;
    }
    return false;
}

/* Return the exit status for main: `result`, or TOOL_USAGE if result is good but standard output
 * failed. */
static inline int tool_end(int result)
{
    return tool_printed() || result != TOOL_GOOD ? result : TOOL_USAGE;
}

#endif

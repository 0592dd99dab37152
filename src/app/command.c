/* The course of a command, the table of commands, and their exit status. */
#define _GNU_SOURCE
#include "app/command.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ground/save.h"
#include "ring/crew.h"
#include "ring/variants.h"

#ifndef CP_VERSION
#define CP_VERSION "0"
#define CP_COMMIT "unknown"
#endif

static int output_reason; /* the first errno of standard output, 0: none */

cp_status cp_output_flush(void) {
    if ((fflush(stdout) != 0 || ferror(stdout)) && output_reason == 0)
        output_reason = errno != 0 ? errno : EIO;
    if (output_reason == 0)
        return CP_OK;
    if (output_reason == EPIPE)
        return cp_fail(CP_FILE, "%s", "");
    return cp_fail(CP_FILE, "standard output: cannot write: %s",
                   strerror(output_reason));
}

void cp_complain(const char *message) {
    if (cp_crew_leads() && message[0] != '\0')
        fprintf(stderr, "longring: %s\n", message);
}

static int bad_use(void) {
    cp_complain(cp_message());
    return 2;
}

/* The exit status for the result of the work, and the line that says why. */
static int finished(cp_status status) {
    if (status == CP_OK)
        status = cp_output_flush();
    if (status != CP_OK)
        cp_complain(cp_message());
    if (status == CP_INTERRUPTED)
        return 130;
    return status == CP_OK ? 0 : 1;
}

static int help_print(const cp_usage *usage) {
    cp_options_help(usage, stdout);
    return finished(CP_OK);
}

int cp_command_run(const cp_usage *usage, int count, char *const *arguments,
                   cp_command_step check, cp_command_step run, void *context) {
    bool help = false;
    int result;
    cp_status status = cp_options_parse(usage, count, arguments, &help);
    if (status == CP_OK && !help)
        status = check(context);
    if (status != CP_OK)
        result = bad_use();
    else if (help)
        result = help_print(usage);
    else
        result = finished(run(context));
    cp_options_free(usage->options);
    return result;
}

cp_status cp_command_ranks_of(int64_t *ranks, int64_t tensor) {
    const cp_crew *crew = cp_crew_mine();
    const bool joined = crew->share != NULL;
    if (tensor < 1 || tensor > CP_COMMAND_RANKS)
        return cp_fail(CP_INVALID, "--tensor %lld: between 1 and %d GPUs",
                       (long long)tensor, CP_COMMAND_RANKS);
    if (tensor > 1 && !joined)
        return cp_fail(CP_INVALID,
                       "--tensor %lld: a launcher must start the processes, "
                       "one for each GPU",
                       (long long)tensor);
    if (*ranks < 0)
        *ranks = joined ? cp_max(1, crew->ranks / tensor) : 4;
    if (*ranks < 1 || *ranks > CP_COMMAND_RANKS)
        return cp_fail(CP_INVALID,
                       "--ranks %lld: between 1 and %d ranks can be had",
                       (long long)*ranks, CP_COMMAND_RANKS);
    if (joined && tensor == 1 && *ranks != crew->ranks)
        return cp_fail(CP_INVALID,
                       "--ranks %lld: the launcher has started %d processes",
                       (long long)*ranks, crew->ranks);
    if (joined && *ranks * tensor != crew->ranks)
        return cp_fail(CP_INVALID,
                       "--ranks %lld --tensor %lld: the launcher has started "
                       "%d processes",
                       (long long)*ranks, (long long)tensor, crew->ranks);
    return CP_OK;
}

cp_status cp_command_ranks(int64_t *ranks) {
    return cp_command_ranks_of(ranks, 1);
}

cp_status cp_command_divide(const cp_backend *backend, int64_t tensor) {
    if (tensor == 1)
        return CP_OK;
    if (backend->divide == NULL)
        return cp_fail(CP_INVALID,
                       "--tensor %lld: only ranks on GPUs share their heads",
                       (long long)tensor);
    return backend->divide((int)tensor);
}

static const char *const places[] = {"threads", "mpi", "cuda", "cuda-fp32",
                                     "cuda-fp8"};
enum { PLACES = sizeof(places) / sizeof(places[0]) };

cp_status cp_command_backend(int place, double timeout,
                             const cp_backend **backend) {
    *backend = cp_backend_find(places[place]);
    if (*backend == NULL)
        return cp_fail(CP_INVALID, "--on %s: not built in%s", places[place],
                       strncmp(places[place], "cuda", 4) == 0
                           ? " (make gpu makes build/gpu/longring)"
                           : "");
    if (!(timeout > 0))
        return cp_fail(CP_INVALID, "--timeout %g: seconds above 0 are due",
                       timeout);
    if (cp_crew_mine()->patience != NULL)
        cp_crew_mine()->patience(timeout);
    if ((*backend)->patience != NULL)
        (*backend)->patience(timeout);
    return CP_OK;
}
cp_status cp_command_machine(const char *name, int variant,
                             cp_hardware *hardware) {
    cp_status status = CP_OK;
    if (name == NULL)
        return CP_OK;
    if (variant != CP_AUTO)
        return cp_fail(CP_INVALID,
                       "--machine has no meaning with --variant "
                       "%s; auto asks it",
                       cp_variant_name((cp_variant)variant));
    if (cp_crew_leads())
        status = cp_hardware_read(name, hardware);
    return cp_crew_share(status, hardware, sizeof(*hardware), NULL, NULL);
}
cp_status cp_command_about(cp_status status, const char *path) {
    if (status == CP_OK || status == CP_MEMORY ||
        strstr(cp_message(), path) != NULL)
        return status;
    return cp_fail(status, "%s: %s", path, cp_message());
}
cp_grouped cp_group(int64_t count) {
    cp_grouped grouped = {0};
    char digits[24];
    const int length =
        snprintf(digits, sizeof(digits), "%lld", (long long)count);
    char *out = grouped.text;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0 && digits[i - 1] != '-')
            *out++ = ',';
        *out++ = digits[i];
    }
    return grouped;
}

const char *cp_plural(int64_t count) {
    return count == 1 ? "" : "s";
}

cp_status cp_stream_read(FILE *in, const char *name, char **text,
                         int64_t *bytes) {
    int64_t room = 0;
    *text = NULL;
    *bytes = 0;
    do {
        if (*bytes + 1 >= room) {
            /* Double the room for what is read. */
            char *larger;
            const int64_t next = 2 * room + 65536;
            const cp_status status = cp_allocate(&larger, next, 1, name);
            if (status == CP_OK && room > 0)
                memcpy(larger, *text, (size_t)*bytes);
            free(*text);
            *text = larger;
            room = next;
            if (status != CP_OK)
                return status;
        }
        *bytes +=
            (int64_t)fread(*text + *bytes, 1, (size_t)(room - *bytes - 1), in);
    } while (!feof(in) && !ferror(in));
    (*text)[*bytes] = '\0';
    if (!ferror(in))
        return CP_OK;
    free(*text);
    *text = NULL;
    return cp_fail(CP_FILE, "%s: cannot be read after %lld bytes: %s", name,
                   (long long)*bytes, strerror(errno));
}
static cp_status file_read(const char *path, char **text, int64_t *bytes) {
    FILE *in = fopen(path, "rb");
    if (in == NULL)
        return cp_fail(CP_FILE, "%s: %s", path, strerror(errno));
    const cp_status status = cp_stream_read(in, path, text, bytes);
    fclose(in);
    return status;
}

cp_status cp_file_read(const char *path, char **text, int64_t *bytes) {
    cp_status status = CP_OK;
    *text = NULL;
    if (cp_crew_leads())
        status = file_read(path, text, bytes);
    return cp_crew_share(status, NULL, 0, (void **)text, bytes);
}
cp_status cp_command_check_file(const char *path) {
    return cp_crew_leads() ? cp_save_check(path) : CP_OK;
}

cp_status cp_command_array(const char *path, cp_npy *array) {
    static const int64_t sizes[] = {4, 8, 4, 8}; /* of each cp_npy_type */
    cp_status status = CP_OK;
    int64_t bytes = 0;
    *array = (cp_npy){0};
    if (cp_crew_leads())
        status = cp_npy_read(path, array);
    if (status == CP_OK)
        bytes = array->count * sizes[array->type];
    void *data = array->data;
    status = cp_crew_share(status, array, sizeof(*array), &data, &bytes);
    array->data = data;
    return status;
}

cp_status cp_history_parse(const char *text, cp_turn **turns, int64_t *count) {
    const char *const whole = text, *end = text + strcspn(text, ",");
    int64_t places = 1;
    for (const char *c = text; c < end; c++)
        places += *c == '+';
    *count = 0;
    cp_status status = cp_allocate(turns, places, sizeof(cp_turn), "history");
    for (int64_t i = 0; i < places && status == CP_OK; i++) {
        /* Read one turn of the history. */
        cp_turn turn = {.decode = *text == 'd'};
        text += turn.decode;
        const int64_t length = (int64_t)strcspn(text, "+,");
        if (length == 0)
            status = cp_fail(CP_INVALID,
                             "--history %.*s: turn %lld has no count "
                             "(500+d20+64 is a history)",
                             (int)(end - whole), whole, (long long)(i + 1));
        else
            status = cp_count_parse("history", text, length, &turn.tokens);
        if (status == CP_OK && turn.tokens > INT32_MAX)
            status = cp_fail(CP_INVALID, "--history: a turn of %lld tokens",
                             (long long)turn.tokens);
        if (status == CP_OK && turn.tokens > 0)
            (*turns)[(*count)++] = turn;
        text += length + 1;
    }
    return status;
}

int64_t cp_history_tokens(const cp_turn *turns, int64_t count) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < count; i++)
        tokens += turns[i].tokens;
    return tokens;
}

static const cp_command commands[] = {
    {"chat", "converse about a long document with a model", cp_command_chat},
    {"attend", "exact attention of .npy tensors", cp_command_attend},
    {"logits", "a model's scores of given tokens", cp_command_logits},
    {"tokenize", "text to a model's tokens, and back", cp_command_tokenize},
    {"plan", "who holds what, every hop, bytes and balance", cp_command_plan},
    {"bench", "how fast attention and the ring are on this machine",
     cp_command_bench},
    {"simulate", "what a call would take on a described machine",
     cp_command_simulate},
    {"choose", "which ring, by which rule, and what it costs to be wrong",
     cp_command_choose},
    {"calibrate", "measure this machine, and describe it for the others",
     cp_command_calibrate},
};

enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };
static int overview(void) {
    puts("longring: attention whose context is cut over N ranks, exactly\n");
    for (int i = 0; i < COMMANDS; i++)
        printf("  longring %-10s %s\n", commands[i].name, commands[i].about);
    puts("\nlongring COMMAND --help says more; longring --version, what is "
         "built in.\nCounts may be written 128K (128,000), 128Ki (131,072) "
         "or 1M.");
    return finished(CP_OK);
}
static int version(void) {
    printf("longring %s (commit %s)\n", CP_VERSION, CP_COMMIT);
    for (int i = 0; cp_backends[i] != NULL; i++)
        printf("on %s: kernels %s; communicator %s\n", cp_backends[i]->name,
               cp_backends[i]->kernels, cp_backends[i]->communicator);
    for (int i = 0; i < PLACES; i++)
        if (cp_backend_find(places[i]) == NULL)
            printf("on %s: not built in\n", places[i]);
    return finished(CP_OK);
}
static int unknown_command(const char *text) {
    const char *names[COMMANDS];
    for (int i = 0; i < COMMANDS; i++)
        names[i] = commands[i].name;
    const char *near = cp_nearest(text, (int64_t)strlen(text), COMMANDS, names);
    if (near != NULL)
        fprintf(stderr, "longring: unknown command %s; did you mean %s?\n",
                text, near);
    else
        fprintf(stderr,
                "longring: unknown command %s; longring --help lists them\n",
                text);
    return 2;
}
static int dispatch(int count, char *const *arguments) {
    const char *name = count > 1 ? arguments[1] : "--help";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 ||
        strcmp(name, "help") == 0)
        return overview();
    if (strcmp(name, "--version") == 0)
        return version();
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(count - 2, arguments + 2);
    return unknown_command(name);
}
static const cp_backend *backend_of(int count, char *const *arguments) {
    const char *name = "threads";
    for (int i = 2; i < count; i++)
        if (strncmp(arguments[i], "--on=", 5) == 0)
            name = arguments[i] + 5;
        else if (strcmp(arguments[i], "--on") == 0 && i + 1 < count)
            name = arguments[++i];
    return cp_backend_find(name);
}

static int dispatch_crew(const cp_backend *backend, int count,
                         char *const *arguments) {
    int result = 1;
    if (backend->join(count, arguments) == CP_OK)
        result = dispatch(count, arguments);
    else
        cp_complain(cp_message());
    return cp_crew_mine()->leave != NULL ? cp_crew_mine()->leave(result)
                                         : result;
}
int cp_command_line(int count, char *const *arguments) {
    const cp_backend *backend = backend_of(count, arguments);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    for (int file = 0; file <= 2; file++)
        if (fcntl(file, F_GETFD) < 0)
            open("/dev/null", file == 0 ? O_WRONLY : O_RDONLY);
    if (backend != NULL && backend->join != NULL)
        return dispatch_crew(backend, count, arguments);
    return dispatch(count, arguments);
}

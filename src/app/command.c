/* How a command runs, the table of commands, and their exit status. */
#define _GNU_SOURCE
#include "app/command.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/backends.h"
#include "ground/host.h"
#include "ground/save.h"
#include "predict/ring_order.h"
#include "predict/simulate.h"
#include "group/agree.h"
#include "group/process_group.h"
#include "tokens/leaves.h"

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

bool cp_is_output(const char *path) {
    struct stat named, standard;
    return path != NULL && stat(path, &named) == 0 &&
           fstat(STDOUT_FILENO, &standard) == 0 &&
           named.st_dev == standard.st_dev && named.st_ino == standard.st_ino;
}

void cp_complain(const char *message) {
    if (!cp_process_group_leads() || message[0] == '\0')
        return;
    fputs("longring: ", stderr);
    cp_write_shown(stderr, message);
    fputc('\n', stderr);
}

/* The exit status for the result of the work; prints the line that says why. */
static int finished(cp_status status) {
    if (status == CP_OK)
        status = cp_output_flush();
    if (status != CP_OK)
        cp_complain(cp_message());
    if (status == CP_INTERRUPTED)
        return 130;
    return status == CP_OK ? 0 : 1;
}

enum { PATH_BYTES = 2 * PATH_MAX };

/* The canonical name of the file that an option names, if it exists or could be
 * made; false otherwise. */
static bool file_find(const cp_option *option, char name[PATH_BYTES]) {
    const bool file = option->kind == CP_INPUT || option->kind == CP_OUTPUT;
    const char *path = file ? *(const char **)option->value : NULL;
    char given[PATH_MAX], full[PATH_MAX];
    struct stat entry;
    if (path == NULL)
        return false;
    if (stat(path, &entry) == 0)
        return S_ISREG(entry.st_mode) && realpath(path, name) != NULL;
    const char *base = basename(path);
    snprintf(given, sizeof(given), "%.*s.", (int)(base - path), path);
    if (option->kind == CP_INPUT || realpath(given, full) == NULL)
        return false;
    snprintf(name, PATH_BYTES, "%s/%s", full, base);
    return true;
}

cp_status cp_command_files(const cp_option *options) {
    char written[PATH_BYTES], other[PATH_BYTES];
    for (const cp_option *out = options; out->name != NULL; out++) {
        const char **path = out->value;
        if (out->kind != CP_OUTPUT || *path == NULL)
            continue;
        CP_TRY(cp_save_check(*path));
        if (!file_find(out, written))
            continue;
        for (const cp_option *file = options; file->name != NULL; file++)
            if (file != out && file_find(file, other) &&
                strcmp(written, other) == 0)
                return cp_refuse("--%s %s would overwrite the file of --%s",
                                 out->name, *path, file->name);
    }
    return CP_OK;
}

int cp_command_run(const cp_usage *usage, int count, char *const *arguments,
                   cp_command_step check, cp_command_step run, void *context) {
    bool help, used = false; /* correctly: any failure is not bad use */
    int result = 2;
    cp_status status = cp_options_parse(usage, count, arguments, &help);
    if (status == CP_OK && help) {
        used = true;
        cp_options_help(usage, stdout);
        result = finished(CP_OK);
    } else if (status == CP_OK) {
        status = cp_host_check();
        if (status == CP_OK && check != NULL)
            status = check(context);
        used = status == CP_OK || status == CP_FILE || status == CP_MEMORY;
        if (status == CP_OK && cp_process_group_leads())
            status = cp_command_files(usage->options);
        if (used)
            result = finished(status == CP_OK ? run(context) : status);
    }
    if (!used)
        cp_complain(cp_message());
    cp_options_free(usage->options);
    return result;
}

cp_status cp_command_about(cp_status status, const char *path) {
    if (status == CP_OK || status == CP_MEMORY)
        return status;
    return cp_fail(status, "%s: %s", path, cp_message());
}

cp_status cp_command_cores(int64_t *cores) {
    if (*cores >= 0)
        return cp_option_range("cores", *cores, 1, CP_HOST_CORES);
    *cores = 0;
    return CP_OK;
}

cp_status cp_command_ranks(int64_t *ranks, int64_t tensor) {
    const cp_process_group *group = cp_process_group_own();
    const bool joined = group->broadcast != NULL;
    CP_TRY(cp_option_range("tensor", tensor, 1, CP_COMMAND_RANKS));
    if (tensor > 1 && !joined)
        return cp_refuse("--tensor %ld: a launcher must start the processes, "
                         "one for each GPU",
                         tensor);
    if (*ranks < 0)
        *ranks = joined ? cp_max(1, group->ranks / tensor) : 4;
    CP_TRY(cp_option_range("ranks", *ranks, 1, CP_COMMAND_RANKS));
    if (!joined || *ranks * tensor == group->ranks)
        return CP_OK;
    return cp_refuse(
        "--ranks %ld: the launcher started %d processes; expected %ld", *ranks,
        group->ranks, *ranks * tensor);
}

static const char *const backend_names[] = {
    "threads", "threads-bf16", "mpi",     "mpi-bf16",
    "cuda",    "cuda-fp32",    "cuda-fp8"};
enum { BACKEND_NAMES = sizeof(backend_names) / sizeof(backend_names[0]) };

cp_status cp_command_backend(int choice, double timeout,
                             const cp_backend **backend) {
    *backend = cp_backend_find(backend_names[choice]);
    if (*backend == NULL)
        return cp_refuse("--on %s: not built in%s", backend_names[choice],
                         strncmp(backend_names[choice], "cuda", 4) == 0
                             ? " (make gpu makes build/gpu/longring)"
                             : "");
    if (!(timeout > 0))
        return cp_refuse("--timeout %g: must be > 0 seconds", timeout);
    if (cp_process_group_own()->set_timeout != NULL)
        cp_process_group_own()->set_timeout(timeout);
    if ((*backend)->set_timeout != NULL)
        (*backend)->set_timeout(timeout);
    if (cp_backend_cores(*backend) != NULL)
        cp_cores_kernel(); /* chosen before there are threads */
    return CP_OK;
}

/* Read the numbers after the colon of a placement, if any. */
static cp_status placement_numbers(cp_command_placement *placement,
                                   const char *numbers, int64_t most,
                                   int64_t *count) {
    cp_counts counts = {0};
    *count = 0;
    if (numbers == NULL)
        return CP_OK;
    const cp_status status = cp_counts_parse("placement", numbers + 1, &counts);
    if (status == CP_OK)
        *count = counts.count;
    for (int64_t n = 0; n < *count && n < most; n++)
        placement->weights[n] = counts.items[n];
    free(counts.items);
    return status;
}

cp_status cp_command_placement_check(cp_command_placement *placement,
                                     int64_t ranks) {
    static const char *const names[] = {"zigzag", "naive", "interleave",
                                        "uneven"};
    const char *text = placement->text != NULL ? placement->text : "zigzag";
    const char *numbers = strchr(text, ':');
    const int64_t expected = strncmp(text, "uneven", 6) == 0 ? ranks : 1;
    int64_t count;
    int name = 0;
    while (name < 4 && (strlen(names[name]) != strcspn(text, ":") ||
                        strncmp(text, names[name], strlen(names[name])) != 0))
        name++;
    if (name == 4 || (name < 2 && numbers != NULL))
        return cp_refuse("--placement %s: choose one of zigzag, naive, "
                         "interleave:K, uneven:W,W,...",
                         text);
    CP_TRY(placement_numbers(placement, numbers, CP_SHARES_RANKS, &count));
    if (name >= 2 && count != expected)
        return cp_refuse("--placement %s: %ld numbers; expected %ld", text,
                         count, expected);
    if (name == 2)
        CP_TRY(cp_option_range("placement", placement->weights[0], 1,
                               INT32_MAX / CP_COMMAND_RANKS));
    placement->dealing =
        (cp_dealing){.placement = name == 3 ? CP_ZIGZAG : (cp_placement)name,
                     .block = name == 2 ? placement->weights[0] : 0,
                     .weights = name == 3 ? placement->weights : NULL};
    if (name < 3)
        return CP_OK;
    return cp_command_about(cp_shares_check(placement->weights, (int)ranks),
                            "--placement");
}

const char *cp_command_variants(bool all) {
    static char names[512];
    int64_t at = 0;
    for (cp_variant n = 0; n < CP_VARIANTS; n++)
        if (all || !cp_variant_decodes(n))
            at += snprintf(names + at, sizeof(names) - (size_t)at, "%s|",
                           cp_variant_name(n));
    snprintf(names + at, sizeof(names) - (size_t)at, "off");
    return names;
}

static cp_status variant_read(cp_command_ring *ring) {
    const char *name = ring->variant_name;
    if (name == NULL)
        return CP_OK;
    if (strcmp(name, "off") == 0)
        ring->ranks = 1;
    else if (!cp_variant_parse(name, &ring->variant) ||
             (cp_variant_decodes(ring->variant) && !ring->steps))
        return cp_refuse("--variant %s: choose one of %s", name,
                         cp_command_variants(ring->steps));
    return CP_OK;
}

/* --exact-order implies its own placement. */
static cp_status exact_check(cp_command_ring *ring) {
    if (!ring->exact)
        return CP_OK;
    if (ring->placement.text != NULL)
        return cp_refuse(
            "--exact-order has its own placement and excludes --placement %s",
            ring->placement.text);
    if (ring->wire != CP_WIRE_FP32)
        return cp_refuse("--exact-order and --wire exclude each other: numbers "
                         "that are sent are rounded, local ones are not");
    if (ring->ranks > CP_LEAVES)
        return cp_refuse(
            "--exact-order: %ld ranks; at most %d, the parts that it sums",
            ring->ranks, CP_LEAVES);
    if (ring->tensor > 1)
        return cp_refuse("--exact-order and --tensor exclude each other: NCCL "
                         "sums in its own order");
    if (strstr(backend_names[ring->on], "-bf16") != NULL)
        return cp_refuse("--exact-order adds in fp32: --on %s rounds to bf16",
                         backend_names[ring->on]);
    if (strncmp(backend_names[ring->on], "cuda", 4) != 0 &&
        !cp_cores_in_order())
        return cp_refuse(
            "--exact-order: on this processor BLIS sums in its own order");
    ring->placement.dealing = (cp_dealing){
        .placement = CP_INTERLEAVE, .block = CP_LEAF_BLOCK, .leaves = true};
    return CP_OK;
}

cp_status cp_command_ring_check(cp_command_ring *ring) {
    CP_TRY(variant_read(ring));
    CP_TRY(cp_command_ranks(&ring->ranks, ring->tensor));
    CP_TRY(cp_command_placement_check(&ring->placement, ring->ranks));
    CP_TRY(exact_check(ring));
    if (ring->machine != NULL) {
        if (ring->variant != CP_AUTO)
            return cp_refuse(
                "--machine has no meaning with --variant %s; only auto uses it",
                cp_variant_name(ring->variant));
        const cp_status status =
            cp_process_group_leads()
                ? cp_hardware_read(ring->machine, NULL, &ring->described)
                : CP_OK;
        CP_TRY(cp_process_group_broadcast(status, &ring->described,
                                          sizeof(ring->described), NULL, NULL));
        ring->chooser = (cp_chooser){cp_foresee, &ring->described};
    }
    CP_TRY(cp_command_backend(ring->on, ring->timeout, &ring->backend));
    if (ring->cores > 0 && cp_backend_cores(ring->backend) == NULL)
        return cp_refuse("--cores has no meaning --on %s",
                         backend_names[ring->on]);
    return cp_command_cores(&ring->cores);
}

cp_status cp_command_heads(const cp_counts *heads, bool values,
                           cp_shape *shape) {
    const int64_t *items = heads->items;
    if (heads->count != 0 && heads->count != 3 &&
        !(values && heads->count == 4))
        return cp_refuse(
            "--heads: %ld counts; expected query heads, kv heads and dimension",
            heads->count);
    if (heads->count >= 3)
        *shape = (cp_shape){items[0], items[1], items[2]};
    if (heads->count == 4)
        CP_TRY(cp_option_range("heads", shape->value_dim = items[3], 1,
                               CP_HEAD_DIM_MAX));
    return cp_command_about(cp_shape_check(shape), "--heads");
}

cp_command_dims cp_command_dims_of(const cp_shape *shape) {
    const int64_t value_dim = cp_value_dim(shape);
    cp_command_dims dims;
    if (shape->latent)
        snprintf(dims.text, sizeof(dims.text), "%ld (values: the first %ld)",
                 shape->head_dim, value_dim);
    else if (value_dim != shape->head_dim)
        snprintf(dims.text, sizeof(dims.text), "%ld (values: %ld)",
                 shape->head_dim, value_dim);
    else
        snprintf(dims.text, sizeof(dims.text), "%ld", value_dim);
    return dims;
}

/* Repeat the counts until there are this many; without counts, zeros. */
static cp_status counts_repeat(cp_counts *counts, int64_t count) {
    int64_t *items;
    CP_TRY(cp_allocate(&items, count, sizeof(int64_t), "sequences"));
    for (int64_t i = 0; i < count && counts->count > 0; i++)
        items[i] = counts->items[i % counts->count];
    free(counts->items);
    *counts = (cp_counts){items, count};
    return CP_OK;
}

cp_status cp_command_tokens_check(cp_command_tokens *tokens, int64_t times) {
    const int64_t sequences = tokens->fresh.count;
    cp_counts *cached = &tokens->cached;
    int64_t first = 0; /* sequence with new tokens */
    while (first < sequences && tokens->fresh.items[first] == 0)
        first++;
    if (first == sequences)
        return cp_refuse("--new: 0 new tokens in all");
    if (cached->count > 0 && cached->count != sequences)
        return cp_refuse("--cached has %ld sequences, --new has %ld",
                         cached->count, sequences);
    CP_TRY(counts_repeat(&tokens->fresh, sequences * times));
    return counts_repeat(cached, sequences * times);
}

cp_status cp_command_tokens_sum(const char *name, const cp_counts *counts,
                                int64_t *sum) {
    for (int64_t s = 0; s < counts->count; s++)
        if (!cp_add(*sum, counts->items[s], sum) || *sum > INT32_MAX)
            return cp_refuse("--%s: with the %ld tokens of sequence %ld the "
                             "call exceeds the %d tokens that can be planned",
                             name, counts->items[s], s, INT32_MAX);
    return CP_OK;
}

cp_status cp_command_call_read(cp_command_call *call) {
    CP_TRY(cp_hardware_read(call->machine, NULL, &call->hardware));
    return cp_model_sizes_read(call->model, NULL, &call->sizes);
}

/* Put the devices, with their shares, into the order of the best ring. */
static cp_status order_find(cp_command_call *call) {
    const cp_surface *links = &call->hardware.link_at;
    const int ranks = (int)call->ranks;
    double seconds[CP_SURFACE_ROWS * CP_SURFACE_ROWS];
    int64_t weights[CP_SURFACE_ROWS];
    if (links->count < ranks)
        return cp_refuse("--order best: %s has the links of %d devices; "
                         "expected %d (link_at)",
                         call->hardware.name, links->count, ranks);
    for (int n = 0; n < ranks * ranks; n++)
        seconds[n] = 1 / cp_surface_at(links, 1 + n / ranks, 1 + n % ranks);
    cp_ring_order(ranks, seconds, call->devices);
    memcpy(weights, call->placement.weights, sizeof(weights));
    for (int r = 0; r < ranks; r++)
        call->placement.weights[r] = weights[call->devices[r]];
    call->scenario.devices = call->devices;
    return CP_OK;
}

cp_status cp_command_sparse_check(cp_command_sparse *sparse) {
    const cp_counts *sizes = &sparse->sizes;
    if (sparse->top_k < 0 && sizes->count > 0)
        return cp_refuse("--index has no meaning without --top-k");
    if (sparse->top_k < 0)
        return CP_OK;
    if (sizes->count != 0 && sizes->count != 2)
        return cp_refuse(
            "--index: expected two counts, heads and their dimension");
    sparse->indexer = (cp_indexer){64, 128, sparse->top_k};
    if (sizes->count == 2) {
        sparse->indexer.heads = sizes->items[0];
        sparse->indexer.dim = sizes->items[1];
    }
    CP_TRY(cp_option_range("top-k", sparse->top_k, 1, INT32_MAX));
    CP_TRY(cp_option_range("index", sparse->indexer.heads, 1, CP_HEADS_MAX));
    return cp_option_range("index", sparse->indexer.dim, 1, CP_HEADS_MAX);
}

cp_status cp_command_call_check(cp_command_call *call) {
    cp_counts *fresh = &call->tokens.fresh, *cached = &call->tokens.cached;
    cp_scenario *scenario = &call->scenario;
    int64_t sum = 0; /* over all sequences of the call */
    CP_TRY(cp_command_tokens_check(&call->tokens, call->batch));
    CP_TRY(cp_command_tokens_sum("new", fresh, &sum));
    call->fresh = sum;
    CP_TRY(cp_command_tokens_sum("cached", cached, &sum));
    call->cached = sum - call->fresh;
    CP_TRY(cp_command_ranks(&call->ranks, 1));
    CP_TRY(cp_command_placement_check(&call->placement, call->ranks));
    scenario->dealing = call->placement.dealing;
    CP_TRY(cp_command_sparse_check(&call->sparse));
    scenario->indexer = call->sparse.indexer;
    if (call->window >= 0) {
        CP_TRY(cp_option_range("window", call->window, 0, INT32_MAX));
        call->sizes.window = call->window;
    }
    if (call->order != 0)
        CP_TRY(order_find(call));
    if (scenario->tensor < 0)
        scenario->tensor = call->hardware.gpus_per_node;
    if (scenario->partial_bytes < 0)
        scenario->partial_bytes = call->sizes.cache_bytes > 2 ? 4 : 2;
    scenario->hardware = &call->hardware;
    scenario->model = &call->sizes;
    scenario->ranks = (int)call->ranks;
    scenario->sequences = fresh->count;
    scenario->new_tokens = fresh->items;
    scenario->cached_tokens = cached->items;
    cp_pace pace;
    CP_TRY(cp_pace_new(scenario, &pace));
    call->shape = pace.shape;
    return CP_OK;
}

cp_status cp_command_simulating(const cp_command_call *call,
                                cp_command_step step, void *context) {
    char what[48];
    cp_progress progress = {.shown = isatty(STDERR_FILENO)};
    snprintf(what, sizeof(what), "%s rank%s", cp_group(call->ranks).text,
             cp_plural(call->ranks));
    cp_progress_begin(&progress, "simulating", what);
    const cp_status status = step(context);
    cp_progress_end(&progress);
    return status;
}

/* Either all processes open the same file, or none does. */
static cp_status opened_file(cp_opened *model) {
    const char *slash = strrchr(model->path, '/');
    uint64_t fingerprint = 0;
    if (model->file != NULL)
        return CP_OK;
    const cp_status status = cp_gguf_open(model->path, &model->file);
    if (status == CP_OK && cp_process_group_own()->ranks > 1)
        fingerprint = cp_gguf_fingerprint(model->file);
    return cp_agree_on_file(slash != NULL ? slash + 1 : model->path,
                            fingerprint, status);
}

cp_status cp_opened_words(cp_opened *model) {
    CP_TRY(opened_file(model));
    return cp_command_about(cp_tokenizer_new(model->file, &model->tokenizer),
                            model->path);
}

cp_status cp_opened_weights(cp_opened *model, const cp_command_ring *ring) {
    const cp_backend *backend = ring->backend;
    CP_TRY(opened_file(model));
    if (ring->tensor > 1 && backend->divide == NULL)
        return cp_refuse("--tensor %ld: only ranks on GPUs share their heads",
                         ring->tensor);
    if (ring->tensor > 1)
        CP_TRY(backend->divide((int)ring->tensor));
    CP_TRY(cp_command_about(
        cp_model_open(backend, model->file, &model->weights), model->path));
    model->facts = &model->weights->facts;
    return CP_OK;
}

void cp_opened_close(cp_opened *model) {
    cp_model_close(model->weights);
    cp_tokenizer_free(model->tokenizer);
    cp_gguf_close(model->file);
}

cp_status cp_scores_read(const cp_session *session, int64_t first,
                         int64_t count, int64_t position, int64_t vocabulary,
                         float *logits) {
    CP_TRY(cp_session_logits(session, first, count, logits));
    for (int64_t i = 0; i < count * vocabulary; i++)
        if (!isfinite(logits[i]))
            return cp_refuse("position %ld: the logit of token %ld is %g; the "
                             "model's numbers overflow",
                             (position + i / vocabulary), i % vocabulary,
                             (double)logits[i]);
    return CP_OK;
}

cp_status cp_page_make(cp_page_writer write, void *context, char **text) {
    size_t size;
    *text = NULL;
    FILE *out = open_memstream(text, &size);
    if (out == NULL)
        return cp_fail(CP_MEMORY, "no memory for a page");
    cp_status status = write(context, out);
    if (fclose(out) != 0 && status == CP_OK)
        status = cp_fail(CP_MEMORY, "no memory for a page");
    if (status != CP_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}

/* Read the rest of a file, and append a zero byte. */
static cp_status stream_read(FILE *in, const char *name, char **text,
                             int64_t *bytes) {
    enum { BLOCK = 65536, MOST = 1 << 28 };
    int64_t room = 0, count = 1;
    for (*bytes = 0; count > 0; *bytes += count) {
        if (*bytes > MOST)
            return cp_fail(CP_CAPACITY, "%s: more than %d bytes of text", name,
                           MOST);
        CP_TRY(cp_grow(text, &room, *bytes + BLOCK + 1, 1, name));
        count = (int64_t)fread(*text + *bytes, 1, BLOCK, in);
    }
    (*text)[*bytes] = '\0';
    return !ferror(in)
               ? CP_OK
               : cp_fail(CP_FILE, "%s: cannot be read after %ld bytes: %s",
                         name, *bytes, strerror(errno));
}

/* Does it begin with the byte order mark of UTF-8? */
static bool is_marked(const char *text) {
    return strncmp(text, "\xEF\xBB\xBF", 3) == 0;
}

cp_status cp_file_read(const char *path, char **text, int64_t *bytes) {
    cp_status status = CP_OK;
    *text = NULL;
    if (cp_process_group_leads()) {
        FILE *in = path != NULL ? fopen(path, "rb") : stdin;
        if (in == NULL)
            status = cp_fail(CP_FILE, "%s: %s", path, strerror(errno));
        else
            status = stream_read(in, path != NULL ? path : "standard input",
                                 text, bytes);
        if (in != NULL && path != NULL)
            fclose(in);
        if (status == CP_OK && path != NULL && is_marked(*text))
            memmove(*text, *text + 3, (size_t)((*bytes -= 3) + 1));
    }
    return cp_process_group_broadcast(status, NULL, 0, (void **)text, bytes);
}

void cp_command_lost(int64_t lost) {
    if (lost > 0)
        printf("%s later operation%s left out of the trace\n",
               cp_group(lost).text, lost == 1 ? " is" : "s are");
}

cp_status cp_page_write(const char *path, const char *text) {
    if (cp_process_group_leads() && path != NULL)
        return cp_save(path, text, (int64_t)strlen(text));
    if (cp_process_group_leads())
        fputs(text, stdout);
    return CP_OK;
}

cp_status cp_command_array(const char *path, cp_npy *array) {
    *array = (cp_npy){0};
    cp_status status =
        cp_process_group_leads() ? cp_npy_read(path, array) : CP_OK;
    int64_t bytes = cp_npy_bytes(array);
    void *data = array->data;
    status = cp_process_group_broadcast(status, array, sizeof(*array), &data,
                                        &bytes);
    array->data = data;
    return status;
}

cp_status cp_history_parse(const char *name, const char *text, cp_turn **turns,
                           int64_t *count) {
    const char *const history = text, *end = text + strcspn(text, ",");
    *count = 0;
    CP_TRY(cp_allocate(turns, end - text + 1, sizeof(cp_turn), name));
    for (int number = 1; text <= end; number++) {
        cp_turn turn = {.decode = *text == 'd'};
        text += turn.decode;
        const int64_t length = (int64_t)strcspn(text, "+,");
        if (length == 0)
            return cp_refuse(
                "--%s %.*s: turn %d has no count (500+d20+64 is a history)",
                name, (int)(end - history), history, number);
        CP_TRY(cp_count_parse(name, text, length, &turn.tokens));
        if (turn.tokens > INT32_MAX)
            return cp_refuse("--%s: a turn of %ld tokens", name, turn.tokens);
        if (turn.tokens > 0)
            (*turns)[(*count)++] = turn;
        text += length + 1;
    }
    return CP_OK;
}

int64_t cp_history_tokens(const cp_turn *turns, int64_t count) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < count; i++)
        tokens += turns[i].tokens;
    return tokens;
}

static const struct {
    const char *name, *about;
    int (*run)(int count, char *const *arguments);
} commands[] = {
    {"chat", "converse about a long document with a model", cp_command_chat},
    {"attend", "exact attention of .npy tensors", cp_command_attend},
    {"state", "a layer with a state, of .npy tensors", cp_command_state},
    {"logits", "a model's scores of given tokens", cp_command_logits},
    {"tokenize", "text to a model's tokens, and back", cp_command_tokenize},
    {"plan", "who holds what, every hop, bytes and balance", cp_command_plan},
    {"bench", "how fast attention and the ring are on this machine",
     cp_command_bench},
    {"simulate", "what a call would take on a described machine",
     cp_command_simulate},
    {"choose", "which ring each rule chooses, and what a wrong choice costs",
     cp_command_choose},
    {"calibrate", "measure this machine and write its description",
     cp_command_calibrate},
};

enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };
static int overview(void) {
    puts("longring: exact attention with the context split over N ranks\n");
    for (int i = 0; i < COMMANDS; i++)
        printf("  longring %-10s %s\n", commands[i].name, commands[i].about);
    puts("\nlongring COMMAND --help describes a command; longring --version "
         "lists what is\nbuilt in. Counts may be written 128K (128,000), 128Ki "
         "(131,072) or 1M.");
    return finished(CP_OK);
}

static int version(void) {
    printf("longring %s (commit %s)\n", CP_VERSION, CP_COMMIT);
    printf("micro-kernel: %s\n", cp_cores_kernel());
    for (int i = 0; cp_backends[i] != NULL; i++)
        printf("on %s: kernels %s; communicator %s\n", cp_backends[i]->name,
               cp_backends[i]->kernels, cp_backends[i]->communicator);
    for (int i = 0; i < BACKEND_NAMES; i++)
        if (cp_backend_find(backend_names[i]) == NULL)
            printf("on %s: not built in\n", backend_names[i]);
    return finished(CP_OK);
}

static int dispatch(int count, char *const *arguments) {
    const char *name = count > 1 ? arguments[1] : "--help";
    static char page[] = "--help", *const help[] = {page};
    const bool is_help = strcmp(name, "help") == 0;
    if (is_help && count > 2)
        name = arguments[2];
    else if (is_help || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return overview();
    if (strcmp(name, "--version") == 0)
        return version();
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(is_help ? 1 : count - 2,
                                   is_help ? help : arguments + 2);
    const char *near = cp_nearest(name, (int64_t)strlen(name), COMMANDS,
                                  &commands->name, sizeof(*commands));
    if (near != NULL)
        cp_refuse("unknown command %s; did you mean %s?", name, near);
    else
        cp_refuse("unknown command %s; longring --help lists them", name);
    cp_complain(cp_message());
    return 2;
}

int cp_command_line(int count, char *const *arguments) {
    const char *on = cp_options_peek("on", count, arguments);
    const cp_backend *backend = cp_backend_find(on != NULL ? on : "threads");
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    for (int file = 0; file <= 2; file++)
        if (fcntl(file, F_GETFD) < 0)
            open("/dev/null", file == 0 ? O_WRONLY : O_RDONLY);
    const bool joins = backend != NULL && backend->join != NULL;
    const cp_status joined = joins ? backend->join(count, arguments) : CP_OK;
    const int result =
        joined == CP_OK ? dispatch(count, arguments) : finished(joined);
    const cp_process_group *group = cp_process_group_own();
    return group->leave != NULL ? group->leave(result) : result;
}

/* Traces by timed events: complete, in order, and without cost if not
 * requested. */
#define _POSIX_C_SOURCE 200809L /* mkstemp */
#include "talk.h"

#include <unistd.h>

#include "cuda/run/graph.h"

typedef struct {
    char name[32];
    int lane, hop;
    double start, length;
    long long layer, bytes;
} trace_line;

enum { MOST_LINES = 4000 };
static trace_line lines[MOST_LINES];
static int line_count;
static long long left_out;

static void read_lines(const char *path) {
    FILE *file = fopen(path, "r");
    char text[400];
    line_count = 0;
    left_out = 0;
    while (fgets(text, sizeof(text), file) != NULL) {
        trace_line *l = &lines[line_count];
        long long lost;
        const char *where = strstr(text, "\"rank ");
        if (sscanf(text,
                   "{\"name\":\"%31[^\"]\",\"ph\":\"X\",\"pid\":0,\"tid\":%d,"
                   "\"ts\":%lf,\"dur\":%lf,\"args\":{\"layer\":%lld,\"hop\":%d,"
                   "\"bytes\":%lld",
                   l->name, &l->lane, &l->start, &l->length, &l->layer, &l->hop,
                   &l->bytes) == 7)
            line_count++;
        else if (where != NULL &&
                 sscanf(where, "\"rank %*d %*[a-z] (%lld", &lost) == 1)
            left_out += lost;
        hold(line_count < MOST_LINES);
    }
    fclose(file);
}

static int count(const char *name, int lane) {
    int found = 0;
    for (int n = 0; n < line_count; n++)
        found += lines[n].lane == lane && strcmp(lines[n].name, name) == 0;
    return found;
}

static char path[] = "/tmp/trace-XXXXXX";

/* Is the next operation done together with this one? */
static bool is_one(const cp_op *op) {
    return op->merged ||
           (op[0].kind == CP_OP_MERGE && op[1].kind == CP_OP_MERGE);
}

static void look_for_all(const talk *t) {
    static const char *const names[] = {"append",     "pack",      "attend",
                                        "merge",      "exchange",  "wait",
                                        "all-to-all", "all-gather"};
    for (int r = 0; r < t->ranks; r++) {
        const cp_program *program = &t->plan->programs[r];
        int expected[8] = {0};
        for (int64_t n = 0; n < program->count; n++)
            if (n == 0 || t->separate || !is_one(&program->ops[n - 1]))
                expected[program->ops[n].kind]++;
        for (int kind = 0; kind < 8; kind++) {
            const bool talks = kind == CP_OP_EXCHANGE || kind > CP_OP_WAIT;
            ck_assert_str_eq(names[kind], cp_op_name((cp_op_kind)kind));
            ck_assert_int_eq(count(names[kind], 2 * r + talks),
                             t->layers * expected[kind]);
            ck_assert_int_eq(count(names[kind], 2 * r + !talks), 0);
        }
    }
}

static const trace_line *find_line(const char *name, int lane, int64_t layer,
                                   int hop) {
    for (int n = 0; n < line_count; n++)
        if (lines[n].lane == lane && lines[n].layer == layer &&
            lines[n].hop == hop && strcmp(lines[n].name, name) == 0)
            return &lines[n];
    return NULL;
}

static bool lies_under(const trace_line *hop) {
    for (int n = 0; n < line_count; n++)
        if (lines[n].lane == hop->lane - 1 &&
            strcmp(lines[n].name, "attend") == 0 &&
            lines[n].start < hop->start + hop->length &&
            hop->start < lines[n].start + lines[n].length)
            return true;
    return false;
}

static int count_hidden(const talk *t) {
    int hidden = 0;
    for (int r = 0; r < t->ranks; r++)
        for (int n = 0; n < t->layers * t->ranks; n++) {
            const int layer = n / t->ranks, hop = n % t->ranks;
            const trace_line *sent =
                find_line("exchange", 2 * r + 1, layer, hop);
            const trace_line *waited = find_line("wait", 2 * r, layer, hop);
            if (sent == NULL)
                continue;
            ck_assert_ptr_nonnull(waited);
            ck_assert_double_ge(waited->start + waited->length + 1e-2,
                                sent->start + sent->length);
            hidden += lies_under(sent);
        }
    return hidden;
}

static cp_status walk_and_look(talk *t) {
    const cp_status status = walk_together(t);
    int64_t lost;
    must(cp_device_trace_write(t->trace, path, &lost));
    read_lines(path);
    look_for_all(t);
    if (t->plan->variant == CP_PASS_KV && t->ranks > 1)
        ck_assert_int_ge(count_hidden(t),
                         emulator_pretends() ? t->ranks * t->layers : 0);
    return status;
}

static talk open_traced(int seed, bool traced) {
    begin_open(seed);
    talk t = {.shape = {4, 2, 8},
              .ranks = 1 + seed % 5,
              .sequences = 2,
              .room = 90,
              .spare = 1 + seed % 2,
              .separate = seed % 3 == 0};
    open_talk(&t);
    strcpy(path, "/tmp/trace-XXXXXX");
    close(mkstemp(path));
    if (traced)
        must(cp_device_trace_new(t.ranks, &t.trace));
    return t;
}

static void close_traced(talk *t) {
    cp_device_trace_free(t->trace);
    unlink(path);
    close_talk(t);
    end();
}

static const int64_t fresh[] = {17, 6}, one[] = {1, 1};

LOOP(a_trace_names_every_operation_on_its_queue, 0, 20) {
    static const cp_variant variants[] = {CP_PASS_KV, CP_PASS_Q, CP_ALL_GATHER,
                                          CP_DECODE};
    talk t = open_traced(_i, true);
    const cp_variant variant = variants[_i / 5];
    if (variant == CP_DECODE)
        call(&t, fresh, CP_PASS_KV);
    cp_device_trace_free(t.trace);
    must(cp_device_trace_new(t.ranks, &t.trace));
    t.walk = walk_and_look;
    call(&t, variant == CP_DECODE ? one : fresh, variant);
    went_well(&t, 0);
    ck_assert_int_eq(left_out, 0);
    close_traced(&t);
}

LOOP(without_a_trace_events_have_no_timing, 0, 4 * emulator_pretends()) {
    talk t = open_traced(_i, _i % 2 == 1);
    int64_t timed[2];
    for (int again = 0; again < 2; again++) {
        call(&t, fresh, CP_PASS_KV);
        call(&t, fresh, CP_PASS_Q);
        timed[again] = emulator_count().timed_events;
    }
    ck_assert_int_eq(timed[0] > 0, _i % 2 == 1);
    ck_assert_int_gt(emulator_count().ranges, 0);
    ck_assert_int_eq(emulator_count().open_ranges, 0);
    ck_assert_int_eq(timed[0], timed[1]);
    went_well(&t, 0);
    close_traced(&t);
}

static cp_status enqueue_layer(void *context) {
    talk *t = context;
    return cp_stream_walk(t->walkers, t->ranks, NULL, t->keys[0], t->values[0]);
}

static cp_status walk_in_a_graph(talk *t) {
    cp_graph *graph = NULL;
    must(walk_layer(t, 0));
    must(cp_graph_capture(t->queues, t->ranks, NULL, enqueue_layer, t, &graph));
    for (int r = 0; r < t->ranks; r++)
        must(give_all(t, r));
    must(cp_graph_launch(graph));
    for (int r = 0; r < t->ranks; r++) {
        must(take(t, 0, r));
        must(cp_stream_walker_finish(t->walkers[r], 60.0));
    }
    cp_graph_free(graph);
    return CP_OK;
}

LOOP(captured_work_is_left_out, 0, 3) {
    talk t = open_traced(2 + _i, true);
    t.layers = 1;
    t.walk = walk_in_a_graph;
    call(&t, fresh, CP_PASS_KV);
    went_well(&t, 0);
    int64_t lost;
    must(cp_device_trace_write(t.trace, path, &lost));
    read_lines(path);
    ck_assert_int_gt(line_count, 0);
    ck_assert_int_eq(left_out, line_count);
    t.layers = LAYERS;
    close_traced(&t);
}

/* Measure on a GPU what its documents leave open: measure_gpu PART. Prints a
 * line for each thing as it is known: what, unit, value, and the operations and
 * bytes that were counted for it, or 0. Attention is longring bench's. On the
 * emulator it is short, and the numbers mean nothing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/timed_device.h"
#include "cuda/kernels/device_encode.h"
#include "cuda/run/nccl_link.h"
#include "tests/emulator/emulator.h"

static cp_queues queues;

static void need(cp_status status) {
    if (status == CP_OK)
        return;
    fprintf(stderr, "%s\n", cp_message());
    exit(1);
}

static void must(cudaError_t error) {
    need(cp_cuda(error, "measuring"));
}

static void print(const char *what, const char *unit, double value,
                  double operations, double bytes) {
    printf("%s,%s,%.5g,%.5g,%.5g\n", what, unit, value, operations, bytes);
    fflush(stdout);
}

/* So often on a GPU. */
static int64_t often(int64_t times) {
    return emulator_pretends() ? cp_min(times, 40) : times;
}

static void finish(void) {
    must(cudaStreamSynchronize(queues.compute));
}

static void *reserve(int64_t bytes) {
    char *memory;
    need(cp_device_reserve(bytes, "what is measured", &memory));
    return memory;
}

/* Random numbers in any format. */
static void *random_numbers(int64_t bytes) {
    void *memory = reserve(bytes);
    need(cp_device_numbers(memory, bytes, queues.compute));
    return memory;
}

/* Microseconds for each time, on the host and until the last is over. */
typedef struct {
    double host, all;
} span_of_time;

static span_of_time time_of(void (*enqueue)(void *context), void *context,
                            int64_t times) {
    double host = 0;
    enqueue(context);
    finish();
    const double start = cp_clock();
    for (int64_t n = 0; n < times; n++) {
        const double before = cp_clock();
        enqueue(context);
        host += cp_clock() - before;
    }
    finish();
    return (span_of_time){1e6 * host / (double)times,
                          1e6 * (cp_clock() - start) / (double)times};
}

static cp_nccl *alone(void) {
    ncclUniqueId id;
    cp_nccl *world;
    need(cp_nccl_id(&id));
    need(cp_nccl_new(&id, 0, 1, 60, &world));
    return world;
}

typedef struct {
    cp_nccl *world;
    void *from, *to;
    int64_t bytes;
    cudaGraphExec_t graph;
} timed_message;

static void send_to_self(void *context) {
    const timed_message *message = context;
    const cp_message_half both[] = {{0, false, message->from, message->bytes},
                                    {0, true, message->to, message->bytes}};
    const cp_link *link = &message->world->link;
    need(link->trade(link->context, both, 2, queues.compute));
}

static void launch_graph(void *context) {
    const timed_message *message = context;
    must(cudaGraphLaunch(message->graph, queues.compute));
}

/* Bare CUDA: no other part knows that the communicator is in a graph. */
static void capture(timed_message *message) {
    cudaGraph_t graph;
    must(cudaStreamBeginCapture(queues.compute,
                                cudaStreamCaptureModeThreadLocal));
    send_to_self(message);
    must(cudaStreamEndCapture(queues.compute, &graph));
    must(cudaGraphInstantiate(&message->graph, graph, 0));
    must(cudaGraphDestroy(graph));
}

static timed_message message_of(int64_t bytes) {
    return (timed_message){alone(), random_numbers(bytes), reserve(bytes),
                           bytes, NULL};
}

static void message_end(const timed_message *message) {
    must(cudaGraphExecDestroy(message->graph));
    cp_nccl_free(message->world);
    must(cudaFree(message->from));
    must(cudaFree(message->to));
}

static void print_messages(void) {
    static const int64_t sizes[] = {4096, 1 << 20, 1 << 26};
    const int64_t times = often(1000);
    char what[64];
    for (int n = 0; n < 3 - emulator_pretends(); n++) {
        timed_message message = message_of(sizes[n]);
        const double bytes = 2 * (double)message.bytes;
        const span_of_time eager = time_of(send_to_self, &message, times);
        snprintf(what, sizeof(what), "message/%ld/eager host", message.bytes);
        print(what, "us", eager.host, 0, 0);
        snprintf(what, sizeof(what), "message/%ld/eager", message.bytes);
        print(what, "us", eager.all, 0, bytes);
        capture(&message);
        const span_of_time captured = time_of(launch_graph, &message, times);
        snprintf(what, sizeof(what), "message/%ld/captured host",
                 message.bytes);
        print(what, "us", captured.host, 0, 0);
        snprintf(what, sizeof(what), "message/%ld/captured", message.bytes);
        print(what, "us", captured.all, 0, bytes);
        message_end(&message);
    }
}

/* How long an abort lasts when messages have been captured. */
static void time_abort(bool alive) {
    timed_message message = message_of(4096);
    send_to_self(&message);
    capture(&message);
    launch_graph(&message);
    finish();
    if (!alive)
        must(cudaGraphExecDestroy(message.graph));
    const double start = cp_clock();
    ncclCommAbort(message.world->comm);
    print(alive ? "abort/graph alive" : "abort/graph gone", "s",
          cp_clock() - start, 0, 0);
    message.world->aborted = true;
    cp_nccl_free(message.world);
}

static void print_abort_after(void) {
    time_abort(false);
}

static void print_abort_alive(void) {
    time_abort(true);
}

enum { ROWS = 4096 };

/* Two versions of some rows, on the host in memory that is not pinned; on the
 * device the rows, and what a kernel saw there. */
typedef struct {
    char *versions[2], *rows, *seen;
    cp_move *move;
    cp_device_copy_args look;
} watched_rows;

static watched_rows watched_new(void) {
    const cp_move all = {0, 0, ROWS};
    const int64_t one = 1;
    watched_rows w = {.rows = reserve(ROWS * 16),
                      .seen = reserve(ROWS * 16),
                      .move = reserve(sizeof(all) + sizeof(one))};
    int64_t *count = (int64_t *)(void *)(w.move + 1);
    for (int n = 0; n < 2; n++) {
        need(cp_allocate(&w.versions[n], ROWS, 16, "rows"));
        memset(w.versions[n], n, ROWS * 16);
    }
    need(cp_bytes_copy(w.move, &all, sizeof(all), queues.compute, "a move"));
    need(cp_bytes_copy(count, &one, sizeof(one), queues.compute, "a count"));
    finish();
    w.look = (cp_device_copy_args){.moves = {w.move, count, 1, ROWS},
                                   .of = {{w.rows, w.seen, 16, 16, 16}}};
    return w;
}

static void watched_free(watched_rows *w) {
    for (int n = 0; n < 2; n++)
        free(w->versions[n]);
    must(cudaFree(w->rows));
    must(cudaFree(w->seen));
    must(cudaFree(w->move));
}

/* Copies from memory that is not pinned, each followed by a kernel that looks;
 * how often it saw what was there before. A cudaMemcpy is not ordered before a
 * kernel on a stream that does not wait for the default one. */
static int64_t count_late(const watched_rows *w, bool ordered) {
    int64_t late = 0;
    char *seen;
    need(cp_allocate(&seen, ROWS, 16, "rows"));
    for (int64_t n = 0; n < often(100000); n++) {
        const char *now = w->versions[n % 2];
        if (ordered)
            must(cudaMemcpyAsync(w->rows, now, ROWS * 16,
                                 cudaMemcpyHostToDevice, queues.compute));
        else
            must(cudaMemcpy(w->rows, now, ROWS * 16, cudaMemcpyHostToDevice));
        must(cp_device_copy(&w->look, queues.compute));
        need(cp_bytes_copy(seen, w->seen, ROWS * 16, queues.compute, "rows"));
        finish();
        late += memcmp(seen, now, ROWS * 16) != 0;
    }
    free(seen);
    return late;
}

static void print_copies(void) {
    watched_rows rows = watched_new();
    print("copy/on the stream/seen late", "copies",
          (double)count_late(&rows, true), 0, 0);
    if (!emulator_pretends()) /* it would call it a fault, and rightly */
        print("copy/cudaMemcpy/seen late", "copies",
              (double)count_late(&rows, false), 0, 0);
    watched_free(&rows);
}

typedef struct {
    cp_multiplier *multiplier;
    cp_device_matrix matrix;
    int64_t rows, turn, stride;
    char *x, *weights;
    float *scales, *y;
} timed_product;

static void multiply(void *context) {
    timed_product *product = context;
    cp_device_matrix matrix = product->matrix;
    matrix.values = product->weights + product->turn++ % 3 * product->stride;
    need(cp_device_multiply(product->multiplier, &matrix, product->rows,
                            product->x,
                            matrix.scales != NULL ? product->scales : NULL,
                            false, product->y, queues.compute));
}

/* Median microseconds of a product, by events; a GPU's share of the call. */
static double time_product(timed_product *product) {
    enum { TIMES = 21 };
    double times[TIMES];
    cudaEvent_t ends[TIMES + 1];
    const int count = (int)cp_min(TIMES, often(TIMES));
    multiply(product);
    for (int n = 0; n <= count; n++) {
        must(cudaEventCreate(&ends[n]));
        if (n > 0)
            multiply(product);
        must(cudaEventRecord(ends[n], queues.compute));
    }
    finish();
    for (int n = 0; n < count; n++) {
        float milliseconds;
        must(cudaEventElapsedTime(&milliseconds, ends[n], ends[n + 1]));
        times[n] = 1e3 * (double)milliseconds;
    }
    for (int n = 0; n <= count; n++)
        must(cudaEventDestroy(ends[n]));
    return cp_median(times, count);
}

/* The linear layers of Llama 3 8B, and an eighth of 405B's. */
static const struct {
    const char *name;
    int64_t in, out;
} layers[] = {
    {"8B qkv", 4096, 6144},           {"8B output", 4096, 4096},
    {"8B gate-up", 4096, 28672},      {"8B down", 14336, 4096},
    {"405B/8 qkv", 16384, 2304},      {"405B/8 output", 2048, 16384},
    {"405B/8 gate-up", 16384, 13312}, {"405B/8 down", 6656, 16384},
};
static const int64_t heights[] = {1, 16, 17, 64, 2048, 4096, 8192};
enum { LAYERS = 8, HEIGHTS = 7, SMALLER = 64 };

static void print_product(timed_product *product, int layer, int64_t rows) {
    const int64_t part = emulator_pretends() ? SMALLER : 1;
    const bool narrow = product->matrix.numbers == CP_NUMBERS_F8;
    char what[64];
    product->matrix.in = layers[layer].in / part / 16 * 16;
    product->matrix.out = layers[layer].out / part / 16 * 16;
    product->matrix.scales = narrow ? product->scales : NULL;
    product->rows = rows;
    const double in = (double)product->matrix.in,
                 out = (double)product->matrix.out;
    const double all = (double)rows, bytes = narrow ? 1 : 2;
    product->stride =
        product->matrix.in * product->matrix.out * (narrow ? 1 : 2);
    snprintf(what, sizeof(what), "product/%s/%ld/%s", layers[layer].name, rows,
             narrow ? "fp8" : "bf16");
    print(what, "us", time_product(product), 2 * in * out * all,
          bytes * in * (out + all) + 4 * out * all);
}

static void print_products(void) {
    const bool small = emulator_pretends();
    const int64_t part = small ? SMALLER : 1;
    const int64_t rows = small ? heights[3] : heights[HEIGHTS - 1];
    const int64_t most = 28672 / part;
    timed_product product = {.x = random_numbers(rows * 16384 / part * 2),
                             .weights =
                                 random_numbers(3 * 16384 * 13312 / part * 2),
                             .scales = random_numbers((most + rows) * 4),
                             .y = reserve(rows * most * 4)};
    need(cp_multiplier_new(&product.multiplier));
    for (int narrow = 0; narrow < 2; narrow++) {
        product.matrix.numbers = narrow ? CP_NUMBERS_F8 : CP_NUMBERS_BF16;
        if (cp_multiplier_check(product.multiplier, product.matrix.numbers) !=
            CP_OK)
            continue;
        for (int layer = 0; layer < LAYERS; layer++)
            for (int n = 0; n < HEIGHTS && heights[n] <= rows; n++)
                print_product(&product, layer, heights[n]);
    }
    cp_multiplier_free(product.multiplier);
    must(cudaFree(product.x));
    must(cudaFree(product.weights));
    must(cudaFree(product.scales));
    must(cudaFree(product.y));
}

/* Launches behind work that takes about a second: how many until the host has
 * to wait, and what each costs it before that. */
static void print_launches(void) {
    const int64_t side = emulator_pretends() ? 64 : 16384;
    const int64_t ahead = emulator_pretends() ? 1 : 100;
    watched_rows rows = watched_new();
    timed_product product = {.x = random_numbers(side * side * 2),
                             .weights = random_numbers(side * side * 2),
                             .y = reserve(side * side * 4),
                             .rows = side};
    product.matrix =
        (cp_device_matrix){side, side, CP_NUMBERS_BF16, NULL, NULL};
    need(cp_multiplier_new(&product.multiplier));
    /* The first of a kernel loads it. */
    multiply(&product);
    must(cp_device_copy(&rows.look, queues.compute));
    finish();
    for (int64_t n = 0; n < ahead; n++)
        multiply(&product);
    const double start = cp_clock();
    double before = start, now = start;
    int64_t launches = 0;
    while (now - before < 2e-3 && launches < often(20000)) {
        before = now;
        must(cp_device_copy(&rows.look, queues.compute));
        now = cp_clock();
        launches++;
    }
    print("launch/until the host waits", "launches",
          (double)(launches + ahead - 1), 0, 0);
    print("launch/each", "us", 1e6 * (before - start) / (double)launches, 0, 0);
    finish();
    cp_multiplier_free(product.multiplier);
    must(cudaFree(product.x));
    must(cudaFree(product.weights));
    must(cudaFree(product.y));
    watched_free(&rows);
}

static void write_rows(void *context) {
    must(cp_device_rows_encode(context, queues.compute));
}

static void read_rows(void *context) {
    must(cp_device_rows_decode(context, queues.compute));
}

/* Rows of a head, as they are held and as --wire sends them. */
static void print_writings(void) {
    static const struct {
        const char *name;
        cp_encoding encoding;
        cp_element element;
    } kinds[] = {{"fp8", CP_ENCODING_FP8, CP_BF16},
                 {"int8", CP_ENCODING_INT8, CP_BF16},
                 {"block", CP_ENCODING_BLOCK, CP_F32}};
    const int64_t rows = emulator_pretends() ? 64 : 1 << 18, dim = 128;
    char what[64];
    for (int n = 0; n < 3; n++) {
        const int64_t held = dim * cp_element_bytes(kinds[n].element);
        const int64_t sent = cp_encoding_bytes(kinds[n].encoding, dim, held);
        const double bytes = (double)(rows * (held + sent));
        cp_device_encode_args args = {
            kinds[n].encoding,           kinds[n].element,    rows, dim,
            random_numbers(rows * held), reserve(rows * sent)};
        snprintf(what, sizeof(what), "writing/%s/write", kinds[n].name);
        print(what, "us", time_of(write_rows, &args, often(100)).all, 1, bytes);
        snprintf(what, sizeof(what), "writing/%s/read", kinds[n].name);
        print(what, "us", time_of(read_rows, &args, often(100)).all, 1, bytes);
        must(cudaFree(args.held));
        must(cudaFree(args.sent));
    }
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*print)(void);
    } parts[] = {
        {"messages", print_messages},       {"abort-after", print_abort_after},
        {"abort-alive", print_abort_alive}, {"copies", print_copies},
        {"launches", print_launches},       {"products", print_products},
        {"writings", print_writings}};
    const int most = (int)(sizeof(parts) / sizeof(parts[0]));
    int n = 0;
    while (n < most && (count != 2 || strcmp(arguments[1], parts[n].name) != 0))
        n++;
    if (n == most) {
        fputs("usage: measure_gpu messages|abort-after|abort-alive|copies|"
              "launches|products|writings\n",
              stderr);
        return 2;
    }
    emulator_begin(&(emulator_options){0});
    int devices;
    need(cp_device_count(&devices));
    need(cp_queues_new(&queues));
    parts[n].print();
    cp_queues_free(&queues);
    return 0;
}

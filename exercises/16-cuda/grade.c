/* Cases of lab 16. */
#include "fold.h"

#include <math.h>
#include <string.h>

#include "tests/harness/grader/grade.h"
#include "tests/emulator/emulator.h"

/* A call whose partials are on the host, and the expected result. */
typedef struct {
    fold call;
    int64_t cells;    /* rows * heads */
    float *parts;     /* [splits][cells][dim] */
    float *levels;    /* [splits][cells] */
    double *want;     /* [cells][dim] */
    double *want_lse; /* [cells] */
    float *got, *lse; /* where the device's answer goes */
} problem;

/* Exponentials, on the emulator: all, and those of each thread of a block. */
static struct {
    int64_t all, by[1024];
    unsigned narrowest; /* block in which one was computed */
} counted;

void fold_count(unsigned thread, unsigned threads);
void fold_count(unsigned thread, unsigned threads) {
    counted.all++;
    counted.by[thread]++;
    if (counted.narrowest == 0 || threads < counted.narrowest)
        counted.narrowest = threads;
}

/* Partials of random shapes: no LSE is further from middle than scale. */
static problem draw_problem(int splits, int64_t rows, int64_t heads,
                            int64_t dim, float middle, float scale) {
    problem p = {.call = {splits, rows, heads, dim, NULL, NULL, NULL, NULL},
                 .cells = rows * heads};
    p.parts = grade_floats(splits * p.cells * dim);
    p.levels = grade_floats(splits * p.cells);
    p.want = grade_room(p.cells * dim * 8);
    p.want_lse = grade_room(p.cells * 8);
    p.got = grade_floats(p.cells * dim);
    p.lse = grade_floats(p.cells);
    for (int64_t i = 0; i < splits * p.cells * dim; i++)
        p.parts[i] = grade_uniform();
    for (int64_t i = 0; i < splits * p.cells; i++)
        p.levels[i] = middle + scale * grade_uniform();
    return p;
}

/* That split has no keys for that row and head, and its output is unwritten. */
static void empty(problem *p, int split, int64_t cell) {
    const int64_t at = split * p->cells + cell;
    p->levels[at] = -INFINITY;
    memset(p->parts + at * p->call.dim, 0xFF, (size_t)p->call.dim * 4);
}

/* The answer of one row and head, in fp64. */
static void truth_of(problem *p, int64_t cell) {
    const int64_t dim = p->call.dim;
    double most = -INFINITY, sum = 0;
    for (int s = 0; s < p->call.splits; s++)
        most = fmax(most, (double)p->levels[s * p->cells + cell]);
    for (int64_t d = 0; d < dim; d++)
        p->want[cell * dim + d] = 0;
    for (int s = 0; s < p->call.splits; s++) {
        const int64_t at = s * p->cells + cell;
        if (p->levels[at] == -INFINITY)
            continue;
        const double weight = exp((double)p->levels[at] - most);
        sum += weight;
        for (int64_t d = 0; d < dim; d++)
            p->want[cell * dim + d] += weight * (double)p->parts[at * dim + d];
    }
    for (int64_t d = 0; d < dim && sum > 0; d++)
        p->want[cell * dim + d] /= sum;
    p->want_lse[cell] = sum > 0 ? most + log(sum) : -INFINITY;
}

static void must(cudaError_t error, const char *what) {
    grade_hold(error == cudaSuccess, "%s: %s\n%s", what,
               cudaGetErrorString(error), emulator_report());
}

/* Device memory, filled with NaN. */
static float *reserve(int64_t count) {
    void *memory = NULL;
    must(cudaMalloc(&memory, (size_t)count * 4), "cudaMalloc");
    must(cudaMemset(memory, 0xFF, (size_t)count * 4), "cudaMemset");
    must(cudaStreamSynchronize(NULL), "cudaMemset");
    return memory;
}

static void begin(problem *p, uint64_t turn) {
    emulator_begin(&(emulator_options){.seed = grade_seed() + turn});
    fold *call = &p->call;
    call->split_output = reserve(call->splits * p->cells * call->dim);
    call->split_lse = reserve(call->splits * p->cells);
    call->output = reserve(p->cells * call->dim);
    call->lse = reserve(p->cells);
}

/* Free everything; the emulator then reports faults. */
static void end(problem *p) {
    cudaFree((void *)(uintptr_t)p->call.split_output);
    cudaFree((void *)(uintptr_t)p->call.split_lse);
    cudaFree(p->call.output);
    cudaFree(p->call.lse);
    grade_hold(emulator_end() == 0, "%s", emulator_report());
}

static void copy(void *to, const void *from, int64_t count, cudaStream_t on) {
    must(cudaMemcpyAsync(to, from, (size_t)count * 4, cudaMemcpyDefault, on),
         "copying");
}

static void upload(const problem *p, cudaStream_t on) {
    const int64_t count = p->call.splits * p->cells;
    copy((void *)(uintptr_t)p->call.split_output, p->parts, count * p->call.dim,
         on);
    copy((void *)(uintptr_t)p->call.split_lse, p->levels, count, on);
}

static void download(const problem *p, cudaStream_t on) {
    copy(p->got, p->call.output, p->cells * p->call.dim, on);
    copy(p->lse, p->call.lse, p->cells, on);
}

/* Upload, fold, wait, download. */
static void run(problem *p, uint64_t turn) {
    begin(p, turn);
    upload(p, NULL);
    must(cudaDeviceSynchronize(), "uploading");
    memset(&counted, 0, sizeof counted);
    must(fold_launch(&p->call, NULL), "fold_launch");
    must(cudaDeviceSynchronize(), "running the kernel");
    download(p, NULL);
    must(cudaDeviceSynchronize(), "downloading");
    for (int64_t cell = 0; cell < p->cells; cell++)
        truth_of(p, cell);
    end(p);
}

static void check(const problem *p, double tolerance) {
    grade_near("lse", p->lse, p->want_lse, p->call.rows, p->call.heads, 1,
               tolerance);
    for (int64_t cell = 0; cell < p->cells; cell++)
        grade_hold(p->want_lse[cell] > -INFINITY || p->lse[cell] == -INFINITY,
                   "lse[row %ld][head %ld]: got %.9g, want -inf",
                   cell / p->call.heads, cell % p->call.heads,
                   (double)p->lse[cell]);
    grade_near("output", p->got, p->want, p->call.rows, p->call.heads,
               p->call.dim, tolerance);
}

static void one_split(void) {
    for (uint64_t n = 0; n < 6; n++) {
        const int64_t rows = grade_between(1, 5), heads = grade_between(1, 6);
        const int64_t dim = n % 2 ? 64 : 128;
        grade_ran("1 split of %ld rows, %ld heads, dim %ld", rows, heads, dim);
        problem p = draw_problem(1, rows, heads, dim, 0, 9);
        run(&p, n);
        check(&p, 0);
    }
}

static void two_splits(void) {
    for (uint64_t n = 0; n < 8; n++) {
        const int64_t rows = grade_between(1, 5), heads = grade_between(1, 6);
        grade_ran("2 splits of %ld rows, %ld heads, dim 64", rows, heads);
        problem p = draw_problem(2, rows, heads, 64, 2, 4);
        run(&p, n);
        check(&p, 5e-6);
    }
}

static bool is_right(const problem *p, int64_t cell) {
    bool right = fabs((double)p->lse[cell] - p->want_lse[cell]) < 1e-4 ||
                 (double)p->lse[cell] == p->want_lse[cell];
    for (int64_t i = cell * p->call.dim; i < (cell + 1) * p->call.dim; i++)
        right = right && fabs((double)p->got[i] - p->want[i]) < 1e-4;
    return right;
}

/* Draw a line for each split, with the rows that it has keys for; below them,
 * the correct rows, with the mark of the heaviest split. */
static void draw_cells(const problem *p) {
    const int splits = p->call.splits;
    for (int64_t cell = 0; cell < p->cells; cell++) {
        const double from = (double)cell, to = (double)(cell + 1);
        int heaviest = 0;
        for (int s = 0; s < splits; s++) {
            const float level = p->levels[s * p->cells + cell];
            if (level > p->levels[heaviest * p->cells + cell])
                heaviest = s;
            if (level > -INFINITY)
                grade_stroke(s, false, s, "holds", from, to);
        }
        if (is_right(p, cell))
            grade_stroke(splits, false, heaviest, "holds", from, to);
    }
}

static void without_keys(void) {
    problem p = draw_problem(5, 4, 3, 64, 0, 3);
    grade_ran("5 splits of 4 rows, 3 heads; split s has no keys in row and "
              "head n where n * s %% 4 is 2 or 3, nor has any in [row 1]");
    for (int64_t cell = 0; cell < p.cells; cell++)
        for (int s = 0; s < 5; s++)
            if (cell * s % 4 >= 2 || cell / 3 == 1)
                empty(&p, s, cell);
    run(&p, 0);
    draw_cells(&p);
    check(&p, 5e-6);
    for (uint64_t n = 1; n < 8; n++) {
        const int splits = n == 1 ? 1 : (int)grade_between(1, 7);
        const int kept = n == 1 ? 1 : (int)grade_between(0, splits);
        p = draw_problem(splits, 2, 3, 64, 0, 3);
        if (kept < splits) /* otherwise none */
            grade_ran("%d splits of 2 rows, 3 heads; only split %d has keys",
                      splits, kept);
        else
            grade_ran("%d splits of 2 rows, 3 heads, none with keys", splits);
        for (int s = 0; s < splits; s++)
            for (int64_t cell = 0; cell < p.cells && s != kept; cell++)
                empty(&p, s, cell);
        run(&p, n);
        check(&p, 5e-6);
    }
}

static void any_dim(void) {
    static const int64_t dims[] = {1, 3, 31, 33, 80, 127, 129, 250, 300};
    grade_read("13.14");
    for (uint64_t n = 0; n < 18; n++) {
        const int splits = (int)grade_between(2, 5);
        const int64_t dim = dims[n % 9], heads = grade_between(1, 3);
        grade_ran("%d splits of 3 rows, %ld heads, dim %ld", splits, heads,
                  dim);
        problem p = draw_problem(splits, 3, heads, dim, -2, 5);
        run(&p, n);
        check(&p, 1e-5);
    }
}

static void many_splits(void) {
    static const int splits[] = {7, 31, 32, 33, 63, 64};
    grade_read("13.14");
    for (uint64_t n = 0; n < 12; n++) {
        const int count = splits[n % 6];
        const int64_t heads = grade_between(1, 3);
        grade_ran("%d splits of 2 rows, %ld heads, dim 64", count, heads);
        problem p = draw_problem(count, 2, heads, 64, -2, 5);
        run(&p, n);
        check(&p, 1e-5);
    }
}

static void far_apart(void) {
    static const float middles[] = {0, 500, -500, 0, 0, 0, 0};
    static const float shifts[] = {0, 0, 0, 90, -90, 3000, -3000};
    for (uint64_t n = 1; n < 7; n++) {
        problem p = draw_problem(3, 2, 2, 64, middles[n], 4);
        for (int64_t cell = 0; cell < p.cells; cell++)
            p.levels[p.cells + cell] += shifts[n];
        grade_ran("3 splits, all LSEs near %g, those of split 1 shifted by %g",
                  (double)middles[n], (double)shifts[n]);
        run(&p, n);
        check(&p, 1e-5);
    }
}

/* Replace pageable host memory by pinned memory. */
static void pin(float **numbers, int64_t count) {
    void *memory = NULL;
    must(cudaMallocHost(&memory, (size_t)count * 4), "cudaMallocHost");
    memcpy(memory, *numbers, (size_t)count * 4);
    *numbers = memory;
}

/* Fold twice: a wait before the second launch would run the first. An
 * allocation would fail, and be reported. */
static void fold_twice(const problem *p, cudaStream_t on) {
    const int64_t before = emulator_count().launches;
    for (int n = 0; n < 2; n++) {
        emulator_fail_allocation(1);
        const cudaError_t error = fold_launch(&p->call, on);
        emulator_fail_allocation(0);
        grade_hold(strstr(emulator_report(), "failed on demand") == NULL,
                   "fold_launch allocates memory");
        must(error, "fold_launch");
        grade_equal(
            emulator_count().launches, before,
            "kernels that had run when the %s fold_launch returned: it waited",
            n == 0 ? "first" : "second");
    }
}

static void in_its_stream(void) {
    grade_read("13.1");
    for (uint64_t n = 0; n < 4; n++) {
        cudaStream_t on = NULL;
        problem p = draw_problem(4, 3, 2, 64, 0, 4);
        for (int64_t cell = 0; cell < p.cells; cell++)
            truth_of(&p, cell);
        grade_ran("copies to the device, fold_launch twice, copies back, all "
                  "on one stream; the host waits at the end");
        begin(&p, n);
        float **pinned[] = {&p.parts, &p.levels, &p.got, &p.lse};
        const int64_t counts[] = {4 * p.cells * 64, 4 * p.cells, p.cells * 64,
                                  p.cells};
        for (int i = 0; i < 4; i++)
            pin(pinned[i], counts[i]);
        must(cudaStreamCreateWithFlags(&on, cudaStreamNonBlocking), "a stream");
        const int64_t before = emulator_count().launches;
        upload(&p, on);
        fold_twice(&p, on);
        download(&p, on);
        must(cudaStreamSynchronize(on), "waiting for the stream");
        check(&p, 1e-5);
        must(cudaDeviceSynchronize(), "waiting for all");
        if (emulator_pretends())
            grade_equal(emulator_count().launches, before + 2,
                        "kernels that two calls launched");
        for (int i = 0; i < 4; i++)
            cudaFreeHost(*pinned[i]);
        cudaStreamDestroy(on);
        end(&p);
    }
}

/* Check which threads computed exponentials, for `splits` splits of `cells`
 * rows and heads. */
static void check_shares(int splits, int64_t cells) {
    grade_hold(counted.all > 0,
               "no exponential was counted: use expf or exp2f");
    grade_hold(counted.narrowest >= 64,
               "blocks of %u threads: at least 64 share the work",
               counted.narrowest);
    grade_hold(counted.all <= 2 * splits * cells,
               "%ld exponentials for %d splits of %ld rows and heads: at most "
               "two for each are %ld",
               counted.all, splits, cells, 2 * splits * cells);
    for (int thread = 0; thread < 1024; thread++)
        grade_hold(counted.by[thread] <= 2 * cells,
                   "thread %d of a block computed %ld exponentials for %d "
                   "splits of %ld rows and heads: at most two for each row "
                   "and head are %ld",
                   thread, counted.by[thread], splits, cells, 2 * cells);
}

static void weigh_once(void) {
    for (uint64_t n = 0; n < 4; n++) {
        const int splits = (int)grade_between(8, 64);
        grade_ran("%d splits of 2 rows, 2 heads, dim 128: exponentials are "
                  "counted",
                  splits);
        problem p = draw_problem(splits, 2, 2, 128, 0, 4);
        run(&p, n);
        check(&p, 1e-5);
        if (emulator_pretends())
            check_shares(splits, p.cells);
    }
}

/* Check that the call returns this, and launches nothing. */
static void answers(fold call, cudaError_t want) {
    emulator_begin(&(emulator_options){.seed = grade_seed()});
    grade_ran("fold_launch with %d splits, %ld rows, %ld heads, dim %ld",
              call.splits, call.rows, call.heads, call.dim);
    const cudaError_t got = fold_launch(&call, NULL);
    grade_hold(got == want, "returned %d, %s: want %d, %s", (int)got,
               cudaGetErrorString(got), (int)want, cudaGetErrorString(want));
    must(cudaDeviceSynchronize(), "waiting");
    grade_equal(emulator_count().launches, 0, "kernels that were launched");
    emulator_end();
}

static void none(void) {
    static const fold wrong[] = {
        {.splits = 0, .rows = 1, .heads = 1, .dim = 1},
        {.splits = -1, .rows = 1, .heads = 1, .dim = 1},
        {.splits = 65, .rows = 1, .heads = 1, .dim = 1},
        {.splits = 1, .rows = -1, .heads = -1, .dim = 1},
        {.splits = 1, .rows = 3, .heads = -2, .dim = 1},
        {.splits = 2, .rows = 2, .heads = 2, .dim = 0},
        {.splits = 2, .rows = 2, .heads = 2, .dim = -1}};
    for (size_t n = 0; n < sizeof wrong / sizeof *wrong; n++)
        answers(wrong[n], cudaErrorInvalidValue);
    answers((fold){.splits = 3, .rows = 0, .heads = 4, .dim = 64}, cudaSuccess);
    answers((fold){.splits = 3, .rows = 4, .heads = 0, .dim = 64}, cudaSuccess);
}

static void many_rows(void) {
    const int64_t many = 65536 + grade_between(0, 300);
    grade_read("13.14");
    for (uint64_t n = 0; n < 2; n++) {
        const int64_t rows = n == 0 ? many : 1, heads = n == 0 ? 1 : many;
        grade_ran("1 split of %ld rows, %ld heads, dim 2", rows, heads);
        problem p = draw_problem(1, rows, heads, 2, 0, 4);
        run(&p, n);
        check(&p, 0);
    }
}

const grade_lab grade_this = {
    .name = "16-cuda",
    .title = "fold the splits of a decode step, in one launch",
    .section = "13.7",
    .late = "a loop of a thread whose index never reaches its end?",
    .seconds = 20,
    .cases =
        {
            {"one split is a copy, bit for bit", 6, 0,
             "a block for each row and head; shared memory is NaN until a "
             "thread has written it, and others see it after a barrier",
             one_split},
            {"two splits", 7, 1,
             "weights are exp(LSE - the largest LSE), divided by their sum; or "
             "a thread looked for the largest before all had been written: "
             "fmaxf hides the NaN",
             two_splits},
            {"splits without keys", 8, 1,
             "0 * NaN is NaN, and so are 0 / 0 and -inf - (-inf): test first",
             without_keys},
            {"any dim", 5, 2,
             "a thread has the channels threadIdx.x, threadIdx.x + THREADS, "
             "and so on, below dim",
             any_dim},
            {"up to 64 splits", 4, 2,
             "64 splits are two warps: some thread fetches and weighs each "
             "LSE, and the loops over splits begin at 0 and end at splits",
             many_splits},
            {"scores far apart", 5, 2,
             "exp of a difference that is never positive cannot overflow",
             far_apart},
            {"one launch, in its stream, and no wait", 4, 2,
             "fold_launch returns before its kernel runs, and allocates "
             "nothing; the stream is the last argument but one of "
             "CP_LAUNCH_GRID",
             in_its_stream},
            {"each weight is computed once, and not by one thread", 10, 2,
             "give each split to a thread; after a barrier all threads may "
             "read the weight that it computed",
             weigh_once},
            {"more rows, or heads, than 65535", 3, 1,
             "a grid's second and third dimensions end at 65535", many_rows},
            {"nothing to do, and refusals", 2, 1,
             "check each number before you launch: CP_LAUNCH_GRID sees only "
             "the grid",
             none},
        },
};

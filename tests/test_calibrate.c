/* Calibration recovers made-up machines; the command; refusals. */
#define _GNU_SOURCE
#include "harness/shell.h"
#include "expect.h"
#include "harness/tiny_gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "measure/bench.h"
#include "measure/calibrate_cores.h"
#include "ground/host.h"
#include "predict/simulate.h"
#include "reference/attend/fast.h"

static struct {
    double speed; /* of a rank, in cores */
    double share; /* hidden share of a message */
    int64_t runs, of_a_round;
} truth;

enum { WIDTH = 4 * 16 };

static double attend_truth(const cp_timed_work *timed) {
    const double rows = (double)timed->rows, keys = (double)timed->keys;
    const double rate = 1e9 * pow(rows, 0.25) * pow(keys, 0.125) * truth.speed;
    return 2e-6 + (rows * keys == 1 ? 0 : 4 * WIDTH * rows * keys / rate);
}

static double message_truth(const cp_timed_work *timed) {
    return (10e-6 + (double)timed->bytes / 2e9) / fmin(1, truth.speed);
}

static double seconds_truth(const cp_timed_work *timed) {
    const double attend = attend_truth(timed), message = message_truth(timed);
    const double linear =
        8.0 * WIDTH * WIDTH * (double)timed->rows / (4e9 * truth.speed);
    const double all[] = {
        [CP_TIME_PEAK] = linear / 2,
        [CP_TIME_LINEAR] = linear,
        [CP_TIME_ATTEND] = attend,
        [CP_TIME_COPY] = 2 * (double)timed->bytes / 3e9,
        [CP_TIME_EXCHANGE] = message,
        [CP_TIME_ALL_TO_ALL] = 3 * message,
        [CP_TIME_OVERLAP] =
            attend + message - truth.share * fmin(attend, message),
    };
    return all[timed->kind];
}

static cp_status time_nothing(void *context, const cp_timed_work *timed,
                              double *seconds) {
    (void)context;
    *seconds = seconds_truth(timed);
    if (truth.runs++ / truth.of_a_round == 2)
        *seconds *= 5;
    return CP_OK;
}

static int64_t rows[] = {1, 16, 256}, keys[] = {32, 128, 512},
               bytes[] = {64, 4096, 262144};

static cp_calibration request_of(cp_shape shape, int ranks, int64_t cores,
                                 int64_t rounds, cp_hardware *hardware) {
    return (cp_calibration){.shape = shape,
                            .ranks = ranks,
                            .cores = cores,
                            .rounds = rounds,
                            .rows = {rows, 3},
                            .keys = {keys, 3},
                            .bytes = {bytes, 3},
                            .hardware = hardware};
}

static void count_round(void *context) {
    ++*(int *)context;
}

static void calibrated(int ranks, int cores, int local, cp_hardware *hardware) {
    const cp_runner runner = {NULL, NULL, CP_NO_RANK, local, NULL};
    int rounds = 0;
    cp_calibration request =
        request_of((cp_shape){4, 2, 16}, ranks, cores, 3, hardware);
    request.between = count_round;
    request.context = &rounds;
    truth.runs = 0;
    truth.of_a_round = 3 + 9 + 3 + (ranks > 1 ? 3 + 3 + 1 : 3);
    *hardware = (cp_hardware){.name = "made-up"};
    must(cp_calibration_check(&request));
    cp_timing_backend made_up = cp_timing_on_cores(&runner, &request);
    made_up.time = time_nothing;
    must(cp_calibrate(&made_up, &request));
    ck_assert_int_eq(truth.runs, 4 * truth.of_a_round);
    ck_assert_int_eq(rounds, 3);
}

static void near(double value, double expected) {
    ck_assert_msg(fabs(value / expected - 1) < 1e-3, "%g, not %g", value,
                  expected);
}

static const struct {
    int ranks, cores, local;
    double speed, share;
} setups[] = {{4, 2, 0, 0.5, 0.75},
              {2, 2, 0, 1, 0},
              {2, 2, 0, 1, -0.5},
              {1, 2, 0, 2, 0},
              {3, 2, 1, 1, 1}};

/* What is not hidden is described so. */
LOOP(calibration_recovers_made_up_machines, 0, COUNT_OF(setups)) {
    cp_hardware h;
    const int ranks = setups[_i].ranks;
    const bool shared = setups[_i].local == 0;
    truth.speed = setups[_i].speed;
    truth.share = setups[_i].share;
    calibrated(ranks, setups[_i].cores, setups[_i].local, &h);
    ck_assert_int_eq(h.cores, shared ? 2 : 0);
    near(h.launch, 2e-6);
    near(h.peak, 8e9);
    near(h.linear_fraction, 0.5);
    near(h.memory_rate, shared ? 3e9 * ranks : 3e9);
    near(h.attention_rate, 1e9 * pow(256, 0.25) * pow(512, 0.125));
    near(cp_surface_at(&h.attention_by, 16, 128),
         1e9 * pow(16, 0.25) * pow(128, 0.125));
    near(cp_surface_at(&h.attention_by, 64, 64),
         1e9 * pow(64, 0.25) * pow(64, 0.125));
    near(cp_curve_at(&h.linear_at, 16), 4e9);
    near(cp_curve_at(&h.exchange_at, 4096), 10e-6 + 4096 / 2e9);
    near(h.link_rate, 262144 / (262080 / 2e9));
    near(h.link_latency, 10e-6 + 64 / 2e9);
    if (ranks > 1) {
        near(cp_curve_at(&h.all_to_all_at, 4096), 3 * (10e-6 + 4096 / 2e9));
        ck_assert_double_eq_tol(h.overlap, fmax(0, truth.share), 1e-9);
    }
    /* Decode steps take the measured time. */
    const double rank_rate = h.memory_rate / (shared ? ranks : 1);
    for (int k = 0; k < 3 && truth.speed <= 1; k += 2) {
        const cp_timed_work step = {CP_TIME_ATTEND, 1, keys[k], 0};
        near(h.decode_attend +
                 (double)keys[k] * 256 / (h.decode_key_fraction * rank_rate),
             attend_truth(&step));
    }
    /* Measured fields are marked so. */
    const cp_description description = cp_hardware_description(&h);
    int measured = 0;
    for (int n = 0; n < description.count; n++) {
        const cp_origin *origin = &description.origins[n];
        measured += origin->source == CP_SOURCE_MEASURED;
        ck_assert(origin->source == CP_SOURCE_NONE ||
                  strstr(origin->note, "median of 3 rounds") != NULL);
    }
    ck_assert_int_eq(measured, 13 + shared + (ranks > 1 ? 4 : 0));
}

static void make_small(void) {
    make_directory();
    before_every_line("C=\"$L calibrate\"; S='--rounds 1 --rows 1,8 --keys "
                      "16,64 --bytes 64,4096 "
                      "--heads 2,1,16';");
}

AROUND_EACH(make_small, remove_directory);

TEST(descriptions_are_written_and_read) {
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        char line[300];
        snprintf(line, sizeof(line),
                 "F=$D/it && $L calibrate $S --ranks %d --name it --out $F "
                 "&& cat $F && $L simulate --machine $F --model smollm2-135m "
                 "--tensor 1 --new 64 && $L choose --machine $F --model "
                 "smollm2-135m --new 64",
                 ranks);
        accepted(line, "machine it\n");
        ck_assert_ptr_nonnull(strstr(output, "# date: 2"));
        ck_assert_ptr_nonnull(strstr(output, "on threads, heads 2,1,16"));
        ck_assert_ptr_nonnull(strstr(output, "attention_by           8 64 "));
        ck_assert_ptr_nonnull(strstr(output, "on it, smollm2-135m"));
    }
    accepted("$C $S", "machine here\n");
}

TEST(bad_use_is_refused) {
    refused(2, "--rows: 8 after 8; sizes must ascend", "$C --rows 8,8");
    refused(2, "--rows: 13 sizes; 1 to 12 are allowed",
            "$C --rows $(seq -s , 13)");
    refused(2, "--rows 0: expected", "$C --rows 0");
    refused(2, "--rows 9223372036854775807: expected 1 to 65",
            "$C --rows 9223372036854775807");
    refused(2, "rows", "$C --rows x");
    refused(2, "--keys: 4 after 8", "$C --keys 8,4");
    refused(2, "--keys: 25 sizes", "$C --keys $(seq -s , 25)");
    refused(2, "--bytes 7: expected 8 to", "$C --bytes 7");
    refused(2, "1048576 query heads", "$C --heads 1Mi,1,16");
    refused(2, "--rounds 0: expected 1 to 99", "$C --rounds 0");
    refused(2, "--cores 0: expected", "$C --cores 0");
    refused(2, "--ranks 0: expected", "$C --ranks 0");
    refused(2, "--heads: 2 counts", "$C --heads 4,2");
    refused(2, "3", "$C --heads 4,3,8");
    refused(2, "--name \"a b\": expected one word", "$C --name 'a b'");
    refused(2, "--name \"\": expected one word", "$C --name ''");
    refused(2, "--on cuda-fp8: n", "$C --on cuda-fp8");
    refused(2, "--timeout 0", "$C --timeout 0");
    refused(1, "/no/where", "$C $S --out /no/where");
    refused(1, "longring: ",
            "echo kept >$D/it && (ulimit -f 1; trap '' XFSZ; "
            "$C $S --rows 1,2,3,4,5,6,7,8 --out $D/it); s=$?; "
            "grep -q kept $D/it || s=7; exit $s");
}

static const cp_shape heads = {4, 2, 32};
static const int64_t tokens = 1024;

static void row_store(void *context, const cp_bench_row *row) {
    double **seconds = context;
    *(*seconds)++ = row->milliseconds / 1e3;
}

/* Two ranks with a thread each, by pass-KV and by pass-Q. */
static void measure_rings(double seconds[2]) {
    int64_t ranks = 2, length = tokens;
    const cp_bench bench = {.shape = heads,
                            .tokens = {&length, 1},
                            .ranks = {&ranks, 1},
                            .threads = 1,
                            .rounds = 9,
                            .kernel = cp_attend_fast,
                            .runner = &cp_runner_threads,
                            .row = row_store,
                            .context = &seconds};
    must(cp_bench_ring_cores(&bench));
}

static double simulated_seconds(const cp_hardware *h, cp_variant variant) {
    const int64_t none = 0;
    const cp_model_sizes model = {.layers = 1,
                                  .query_heads = heads.query_heads,
                                  .kv_heads = heads.kv_heads,
                                  .head_dim = heads.head_dim,
                                  .cache_bytes = 4};
    cp_forecast forecast;
    const cp_scenario scenario = {.hardware = h,
                                  .model = &model,
                                  .ranks = 2,
                                  .tensor = 1,
                                  .sequences = 1,
                                  .new_tokens = &tokens,
                                  .cached_tokens = &none,
                                  .variant = variant};
    must(cp_simulate(&scenario, &forecast));
    return forecast.ring;
}

TEST(a_ring_takes_about_the_simulated_time) {
    double measured[2] = {0}, simulated[2] = {0};
    bool agree = false;
    for (int attempt = 0; attempt < 8 && !agree; attempt++) {
        cp_hardware h;
        must(cp_hardware_read("laptop", NULL, &h));
        const cp_calibration request =
            request_of(heads, 2, cp_host_cores(), 1, &h);
        must(cp_calibrate_cores(&cp_runner_threads, &request));
        measure_rings(measured);
        agree = true;
        for (int n = 0; n < 2 && agree; n++) {
            const cp_variant variant = n == 0 ? CP_PASS_KV : CP_PASS_Q;
            simulated[n] = simulated_seconds(&h, variant);
            agree = simulated[n] < 3 * measured[n] &&
                    measured[n] < 3 * simulated[n];
        }
    }
    ck_assert_msg(agree, "simulated %g and %g s, measured %g and %g s",
                  simulated[0], simulated[1], measured[0], measured[1]);
}

static const char ring[] = "machine toy\nmemory 1 GB assumed\n"
                           "memory_rate 1000 GB/s assumed\n"
                           "peak 1 TFLOP/s assumed\n"
                           "linear_fraction 1 of-peak assumed\n"
                           "attention_rate 1 TFLOP/s assumed\n"
                           "overlap 0 share assumed\n";

LOOP(auto_takes_what_is_faster, 0, 4) {
    static const char slow_home[] = "link_rate 10 GB/s assumed\n"
                                    "link_latency 1 us assumed\n"
                                    "all_to_all_latency 90000 us assumed\n";
    static const struct {
        const char *links;
        int ranks;
        int64_t fresh;
        cp_variant variant;
        const char *rule;
    } calls[] = {
        {"link_rate 0.01 GB/s assumed\nlink_latency 1 us assumed\n", 4, 8,
         CP_PASS_Q, "simulated on toy"},
        {slow_home, 4, 8, CP_PASS_KV, "simulated on toy"},
        {"link_rate 100000 GB/s assumed\nlink_latency 0 us assumed\n"
         "jitter 1000000 us assumed\n",
         4, 400, CP_PASS_Q, "miss rate"},
        {slow_home, 1, 8, CP_PASS_KV, ""},
    };
    const cp_shape shape = {8, 2, 64};
    const int64_t past = 4000;
    char text[1000];
    cp_hardware hardware;
    cp_choice choice;
    snprintf(text, sizeof(text), "%s%s", ring, calls[_i].links);
    must(cp_hardware_read("toy", text, &hardware));
    must(cp_foresee(&hardware, &shape, 4, CP_WIRE_FP32, calls[_i].ranks, 1,
                    &calls[_i].fresh, &past, &choice));
    ck_assert_int_eq(choice.variant, calls[_i].variant);
    ck_assert_ptr_nonnull(strstr(choice.rule, calls[_i].rule));
}

TEST(commands_choose_by_a_description) {
    tiny_gguf_write(in("m.gguf"), &(tiny_gguf_options){.seed = 5});
    accepted("$L chat --model $D/m.gguf --ranks 3 --machine laptop --compare "
             "--most 3 --ask 'what is this?' --ask why",
             "The questions by both rings, every token as before:");
    ck_assert_ptr_nonnull(strstr(output, "\nRegret "));
    ck_assert_ptr_nonnull(strstr(output, "     2   pass-kv "));
    ck_assert_ptr_null(strstr(output, "     3   pass-kv "));
    accepted("$L chat --model $D/m.gguf --ranks 3 --variant pass-q --compare "
             "--most 3 --ask 'what is this?'",
             "The same on one rank");
    ck_assert_ptr_null(strstr(output, "Regret"));
    refused(1, "machine nowhere: no file",
            "$L chat --model m --ask x --machine nowhere");
    refused(2, "--machine has no meaning with --variant pass-kv",
            "$L chat --model m --ask x --machine gtt --variant pass-kv");
    refused(2, "/dev/null: memory is missing (GB",
            "$L attend --q a --k a --v a --machine /dev/null");
    refused(1, "nowhere", "$L logits --model m --tokens a --machine nowhere");
}

TEST(processes_are_calibrated) {
    if (shell("command -v mpirun && $L --version | grep '^on mpi: kernels'") !=
        0)
        return;
    accepted(
        "exec 2>&1; export ASAN_OPTIONS=detect_leaks=0; " /* MPI's */
        "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; "
        "export OMP_NUM_THREADS=1 OMPI_MCA_rmaps_base_oversubscribe=1; "
        "timeout 90 mpirun -n 3 $L calibrate --on mpi $S",
        "3 ranks on mpi, heads 2,1,16");
    const char *first = strstr(output, "machine here");
    ck_assert_ptr_nonnull(first);
    ck_assert_ptr_null(strstr(first + 1, "machine here"));
}

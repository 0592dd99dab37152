/* The program with GPUs in it, on the stand-in or on a real one. */
#define _GNU_SOURCE
#include "harness/shell.h"
#include "expect.h"
#include "harness/tiny_gguf.h"
#include "app/npy.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void with(const char *variable) {
    static char line[800];
    snprintf(line, sizeof(line),
             "G=${LONGRING_GPU:-${L%%/*}/stand-in/longring}; export %s;",
             variable);
    before_every_line(line);
}

static void set_up(void) {
    make_directory();
    with("D");
    tiny_gguf_write(in("m.gguf"), NULL);
}

static void runs(const char *line) {
    const int status = shell("%s", line);
    ck_assert_msg(status == 0, "%s: status %d: %s", line, status, errors);
}

static void write_tensor(const char *name, int64_t rows, int64_t heads) {
    const int64_t size[] = {rows, heads, 16};
    float numbers[200 * 4 * 16];
    uint64_t state = (uint64_t)name[0];
    for (int64_t i = 0; i < rows * heads * 16; i++)
        numbers[i] = harness_uniform(&state);
    must(cp_npy_write(in(name), CP_NPY_FLOAT32, 3, size, numbers));
}

static double differ(const char *one, const char *other) {
    cp_npy files[2];
    double worst = 0.0;
    must(cp_npy_read(in(one), &files[0]));
    must(cp_npy_read(in(other), &files[1]));
    ck_assert_int_eq(files[0].count, files[1].count);
    for (int64_t i = 0; i < files[0].count; i++) {
        const double apart = fabs((double)((float *)files[0].data)[i] -
                                  (double)((float *)files[1].data)[i]);
        worst = apart <= worst ? worst : isnan(apart) ? INFINITY : apart;
    }
    cp_npy_free(&files[0]);
    cp_npy_free(&files[1]);
    return worst;
}

AROUND_EACH(set_up, remove_directory);

TEST(attention_alone_is_the_same) {
    static const char *const calls[] = {
        "--history 40+d12+9 --variant pass-kv --ranks 3",
        "--history 40+d12+9 --variant pass-q --ranks 4",
        "--history 61 --variant all-gather --ranks 5",
        "--cached 61 --ranks 2",
    };
    char line[1024];
    write_tensor("q.npy", 30, 4);
    write_tensor("k.npy", 91, 2);
    write_tensor("v.npy", 91, 2);
    for (int n = 0; n < 4; n++) {
        snprintf(line, sizeof(line),
                 "for on in threads cuda cuda-fp32; do $G attend --q $D/q.npy "
                 "--k $D/k.npy --v $D/v.npy %s --on $on --out $D/$on.npy --lse "
                 "$D/$on-lse.npy || exit; done",
                 calls[n]);
        runs(line);
        ck_assert(differ("threads.npy", "cuda-fp32.npy") < 2e-6);
        ck_assert(differ("threads-lse.npy", "cuda-fp32-lse.npy") < 2e-6);
        const double rounded = differ("threads.npy", "cuda.npy");
        ck_assert_msg(rounded > 1e-5 && rounded < 2e-2, "%g", rounded);
    }
}

static void write_ids(void) {
    int32_t ids[34];
    const int64_t size[] = {34};
    for (int n = 0; n < 34; n++)
        ids[n] = 20 + 7 * n % 40;
    must(cp_npy_write(in("ids.npy"), CP_NPY_INT32, 1, size, ids));
}

LOOP(a_model_writes_the_same_tokens, 0, harness_seeds(2)) {
    char seed[40];
    snprintf(seed, sizeof(seed), "STAND_IN_SEED=%d", _i + 5);
    with(seed);
    write_ids();
    runs("run() { $G logits --model $D/m.gguf --tokens $D/ids.npy --generate "
         "12 --on $1 --ranks $2 --history 20+d5+9 | tail -n 1; }; "
         "run threads 1 >$D/wanted; [ $(wc -w <$D/wanted) -ge 12 ] || exit; "
         "for n in 1 2 3 5; do run cuda-fp32 $n >$D/got; "
         "cmp $D/wanted $D/got || exit; done");
}

TEST(a_trace_has_two_lanes_a_rank) {
    runs("$G chat --model $D/m.gguf --on cuda --ranks 3 --ask 'Ring' --most 3 "
         "--trace $D/t.json; grep -q 'feed forward' $D/t.json && "
         "grep -q '\"attend\"' $D/t.json && "
         "[ $(grep -c thread_name $D/t.json) = 6 ]");
}

LOOP(gpus_are_calibrated, 0, 3) {
    static const char *const on[] = {"cuda", "cuda-fp32", "cuda-fp8"};
    char line[600];
    if (_i == 2 && getenv("LONGRING_GPU") != NULL)
        return;
    snprintf(line, sizeof(line),
             "$G calibrate --on %s --ranks 2 --rounds 1 --rows 1,8 --keys "
             "16,64 --bytes 64,4096 --heads 4,2,16 --name it --out $D/it && "
             "grep -q '2 ranks on %s, heads 4,2,16' $D/it && $G simulate "
             "--machine $D/it --model smollm2-135m --tensor 1 --new 64 && $G "
             "chat --model $D/m.gguf --on cuda --ranks 2 --machine $D/it "
             "--most 2 --ask Ring",
             on[_i], on[_i]);
    runs(line);
}

TEST(a_machine_without_a_gpu_is_told_so) {
    static const char *const chat =
        "$G chat --model $D/m.gguf --on cuda --ask x --most 2";
    if (getenv("LONGRING_GPU") == NULL) {
        with("STAND_IN_DRIVER=0");
        refused(1, "no GPU: this machine has no driver for one", chat);
        with("STAND_IN_DRIVER=11040");
        refused(1, "driver for CUDA 11.4", chat);
        with("STAND_IN_BYTES=100000");
        refused(1, "the model's weights: ", chat);
        with("D");
    }
    refused(2, "--tensor 2: a launcher must start the processes",
            "$G chat --model $D/m.gguf --on cuda --tensor 2");
    refused(2, "--on cuda: not built in (make gpu",
            "$L chat --model x --on cuda");
    refused(2, "nothing is measured there yet", "$G bench --on cuda");
    write_tensor("q.npy", 30, 2);
    refused(1, "partials are shown on threads",
            "$G attend --q $D/q.npy --k $D/q.npy --v $D/q.npy --on cuda "
            "--partials $D/p --out $D/o --lse $D/l");
}

/* $G as n processes: `ranks N words of $G`; and what all but rank 0 said, in
 * $D/other. */
static void launch(const char *more) {
    char line[600];
    snprintf(line, sizeof(line),
             "D; export NCCL_COMM_ID=127.0.0.1:$((20000 + $$ %% 10000)) %s; "
             "ranks() { export WORLD_SIZE=$1 LOCAL_WORLD_SIZE=$1; all=; shift; "
             "for r in $(seq $((WORLD_SIZE - 1))); do RANK=$r LOCAL_RANK=$r $G "
             "\"$@\" $LAST 2>>$D/other & all=\"$all $!\"; done; "
             "RANK=0 LOCAL_RANK=0 $G \"$@\"; one=$?; for p in $all; do wait $p "
             "|| [ $? = $one ] || exit 7; done; return $one; }",
             more);
    with(line);
}

TEST(launched_processes_say_the_same) {
    if (getenv("LONGRING_GPU") != NULL)
        return;
    launch("NCCL_HOSTID=x");
    write_ids();
    runs("run='logits --model $D/m.gguf --tokens $D/ids.npy --generate 12 "
         "--on cuda-fp32 --history 20+d5+9'; "
         "$G $(eval echo $run) --ranks 2 | tail -n 1 >$D/wanted; "
         "[ $(wc -w <$D/wanted) -ge 12 ] || exit; "
         "for t in 1 2; do ranks $((2 * t)) $(eval echo $run) --tensor $t | "
         "tail -n 1 >$D/got; cmp $D/wanted $D/got || exit; done");
}

TEST(launched_processes_end_together) {
    static const char *const chat =
        "ranks 2 chat --model $D/m.gguf --on cuda --ask x --most 2";
    if (getenv("LONGRING_GPU") != NULL)
        return;
    launch("STAND_IN_DRIVER=0");
    refused(1, "rank 0: no GPU: this machine has no driver for one", chat);
    launch("A=b");
    refused(1, "2 processes on a host of 1 GPUs", chat);
    launch("NCCL_HOSTID=x LAST=--most");
    refused(1, "rank 1 was started with other words than rank 0", chat);
}

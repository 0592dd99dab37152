/* The program with GPUs in it, on the emulator or on a real one. */
#define _GNU_SOURCE
#include "harness/scenes.h"
#include "harness/shell.h"
#include "expect.h"
#include "harness/tiny_gguf.h"
#include "app/npy.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void write_tensor(const char *name, int64_t rows, int64_t heads) {
    const int64_t size[] = {rows, heads, 16};
    float numbers[200 * 4 * 16];
    uint64_t state = (uint64_t)name[0];
    for (int64_t i = 0; i < rows * heads * 16; i++)
        numbers[i] = harness_uniform(&state);
    must(cp_npy_write(in(name), CP_NPY_FLOAT32, 3, size, numbers));
}

/* An array of an indexer, with numbers that all formats hold: [rows][heads][8],
 * or without heads or dim. */
static void write_index(const char *name, int dims, int64_t rows,
                        int64_t last) {
    const int64_t size[] = {rows, dims == 3 ? 2 : last, last};
    float numbers[200 * 2 * 8];
    uint64_t state = (uint64_t)name[1];
    for (int64_t i = 0; i < rows * (dims == 3 ? 2 : 1) * last; i++)
        numbers[i] = (float)(harness_random(&state) % 9) - 4.0f;
    must(cp_npy_write(in(name), CP_NPY_FLOAT32, dims, size, numbers));
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

static void write_ids(const char *name, int64_t count) {
    int32_t ids[150];
    for (int n = 0; n < count; n++)
        ids[n] = 20 + 7 * n % 40;
    must(cp_npy_write(in(name), CP_NPY_INT32, 1, &count, ids));
}

/* $G is the program with GPUs, and `ranks N words` is $G as N processes; the
 * output of all ranks except 0 is in $D/other. */
static void set_up(void) {
    make_directory();
    before_every_line(
        "G=${LONGRING_GPU:-${L%%/*}/emulator/longring}; export D; ranks() { "
        "export NCCL_COMM_ID=127.0.0.1:$((20000 + $$ %% 10000)) WORLD_SIZE=$1 "
        "LOCAL_WORLD_SIZE=$1; all=; shift; "
        "for r in $(seq $((WORLD_SIZE - 1))); do RANK=$r LOCAL_RANK=$r $G "
        "\"$@\" $LAST 2>>$D/other & all=\"$all $!\"; done; "
        "RANK=0 LOCAL_RANK=0 $G \"$@\"; one=$?; for p in $all; do wait $p "
        "|| [ $? = $one ] || exit 7; done; return $one; };");
    tiny_gguf_write(in("m.gguf"), NULL);
    tiny_gguf_write(in("h.gguf"), &(tiny_gguf_options){.family = "qwen35"});
    write_tensor("q.npy", 30, 4);
    write_tensor("k.npy", 91, 2);
    write_tensor("v.npy", 91, 2);
    write_index("iq.npy", 3, 30, 8);
    write_index("ik.npy", 2, 91, 8);
    write_index("iw.npy", 2, 30, 2);
    write_ids("ids.npy", 34);
    write_ids("long.npy", 150);
}

AROUND_EACH(set_up, remove_directory);

/* On the emulator all scenes, on a real GPU those for any device. */
LOOP(scene_is_as_expected, 0,
     scenes_read(getenv("LONGRING_GPU") != NULL ? "tests/scenes/gpu/any.txt"
                                                : "tests/scenes/gpu/*.txt")) {
    scene_play(_i);
}

/* Fewer bits change a model's logits, too, as they do on cores. */
TEST(a_model_sends_fewer_bits) {
    static const char *const wires[] = {"bf16", "fp8", "int8"};
    for (int n = 0; n < COUNT_OF(wires); n++) {
        runs("run() { $G logits --model $D/m.gguf --tokens $D/ids.npy --ranks "
             "3 --history 20+d5+9 --positions all $3 $4 --on $1 --out "
             "$D/$2.npy >$D/said; }; run cuda-fp32 plain && run threads cores "
             "--wire %s && run cuda-fp32 gpu --wire %s",
             wires[n], wires[n]);
        const double effect = differ("plain.npy", "gpu.npy");
        const double apart = differ("cores.npy", "gpu.npy");
        ck_assert_msg(effect > 1e-5 && apart < 0.2 * effect, "%s: %g, %g",
                      wires[n], effect, apart);
    }
}

TEST(attention_alone_is_the_same) {
    static const struct {
        const char *words;
        double off; /* a partial in fewer bits may be rounded the other way */
    } calls[] = {
        {"--history 40+d12+9 --variant pass-kv --ranks 3", 2e-6},
        {"--history 40+d12+9 --variant pass-q --ranks 4", 2e-6},
        {"--history 61 --variant all-gather --ranks 5", 2e-6},
        {"--cached 61 --ranks 2", 2e-6},
        {"--history 40+d12+9 --variant pass-q --ranks 3 --exact-order", 2e-6},
        {"--history 40+d12+9 --ranks 3 --exact-order --window 20", 2e-6},
        {"--history 40+d12+9 --variant pass-q --ranks 3 --top-k 5 "
         "--indexer $D/iq.npy,$D/ik.npy,$D/iw.npy",
         2e-6},
        {"--cached 61 --variant pass-kv --ranks 2 --top-k 70 "
         "--indexer $D/iq.npy,$D/ik.npy,$D/iw.npy",
         2e-6},
        {"--cached 61 --variant pass-kv --ranks 3 --wire int8", 2e-6},
        {"--history 40+d12+9 --variant all-gather --ranks 5 --wire fp8", 2e-6},
        {"--cached 61 --variant pass-q --ranks 7 --wire bf16", 1e-4},
        {"--cached 61 --variant pass-q --ranks 3 --top-k 5 --wire int8 "
         "--indexer $D/iq.npy,$D/ik.npy,$D/iw.npy",
         1e-4},
    };
    for (int n = 0; n < COUNT_OF(calls); n++) {
        runs("for on in threads cuda cuda-fp32; do $G attend --q $D/q.npy "
             "--k $D/k.npy --v $D/v.npy %s --on $on --out $D/$on.npy --lse "
             "$D/$on-lse.npy || exit; done",
             calls[n].words);
        ck_assert_msg(differ("threads.npy", "cuda-fp32.npy") < calls[n].off,
                      "%s: %g", calls[n].words,
                      differ("threads.npy", "cuda-fp32.npy"));
        ck_assert(differ("threads-lse.npy", "cuda-fp32-lse.npy") < 2e-6);
        const double rounded = differ("threads.npy", "cuda.npy");
        ck_assert_msg(rounded > 1e-5 && rounded < 2e-2, "%g", rounded);
    }
}

/* Descriptions of machines and models: read, written, refused. */
#define _GNU_SOURCE
#include "expect.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "predict/machine.h"
#include "predict/pace.h"

static char *written(const cp_hardware *hardware) {
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(out);
    cp_hardware_write(hardware, out);
    fclose(out);
    return text;
}

TEST(built_in_descriptions_survive_writing) {
    int machines = 0, models = 0;
    for (int n = 0; cp_built_ins[n].name != NULL; n++) {
        const char *name = cp_built_ins[n].name;
        const char *text = cp_built_ins[n].text;
        cp_hardware one, two;
        cp_model_sizes sizes;
        if (strstr(name, ".model") != NULL) {
            models++;
            must(cp_model_sizes_read(name, text, &sizes));
        } else if (strstr(name, ".machine") != NULL) {
            machines++;
            /* Read, write and read again. */
            must(cp_hardware_read(name, text, &one));
            char *first = written(&one);
            must(cp_hardware_read("written", first, &two));
            char *second = written(&two);
            ck_assert_str_eq(first, second);
            free(first);
            free(second);
        }
    }
    ck_assert_int_ge(machines, 4);
    ck_assert_int_eq(models, 6);
}

static const char good[] = "machine m\n"
                           "memory 1 GB measured\n"
                           "memory_rate 2 GB/s measured with care\n"
                           "peak 3 TFLOP/s specification\n"
                           "linear_fraction 0.5 of-peak assumed\n"
                           "attention_rate 1 TFLOP/s fitted\n"
                           "link_rate 4 GB/s measured\n"
                           "link_latency 5 us measured\n";

static const struct {
    const char *line, *because;
} bad[] = {
    {"step -1 us measured", "m:9: step: -1: it must be 0 or more"},
    {"node_rate -3 GB/s measured", "node_rate: -3: it must be above 0"},
    {"node_rate 0 GB/s measured", "node_rate: 0: it must be above 0"},
    {"node_rate nan GB/s measured", "node_rate: nan: it must be above 0"},
    {"node_rate inf GB/s measured", "node_rate: inf: it must be above 0"},
    {"node_rate 4GB/s measured", "node_rate: 4GB/s: not a number"},
    {"node_rate", "node_rate: no value: not a number"},
    {"step nan us measured", "step: nan: it must be 0 or more"},
    {"step inf us measured", "step: inf: it must be 0 or more"},
    {"memory_fraction 1.5 of-peak measured", "memory_fraction: 1.5"},
    {"overlap 1.5 share measured", "overlap: 1.5: it must be from 0 to 1"},
    {"gpus_per_node 0 GPUs measured", "gpus_per_node: 0: not a count"},
    {"gpus_per_node -8 GPUs measured", "gpus_per_node: -8: not a count"},
    {"gpus_per_node 2.5 GPUs measured", "gpus_per_node: 2.5: not a count"},
    {"cores 10000000000000000000 cores measured", "cores: 1000"},
    {"node_rate 4 GiB/s measured", "its unit is GB/s, not \"GiB/s\""},
    {"node_rate 4", "node_rate: its unit is GB/s, not \"\""},
    {"node_rate 4 GB/s", "node_rate: its source is \"\""},
    {"node_rate 4 GB/s guessed", "node_rate: its source is \"guessed\""},
    {"memory 2 GB measured", "memory: given twice"},
    {"link_speed 2 GB/s measured", "no such field; did you mean link_peak?"},
    {"zzz 2 GB/s measured", "m:9: zzz: no such field"},
    {"like gtt", "m:9: like: it must come before all fields"},
    {"machine other", "m:9: machine: given twice"},
    {"linear_at 8 1 TFLOP/s measured\nlinear_at 8 2 TFLOP/s measured",
     "m:10: linear_at: its sizes must ascend"},
    {"linear_at 0 1 TFLOP/s measured", "linear_at: 0: it must be above 0"},
    {"linear_at 8 TFLOP/s measured", "linear_at: TFLOP/s: not a number"},
    {"attention_by 8 9 TFLOP/s measured", "attention_by: TFLOP/s: not a"},
    {"attention_by -8 9 1 TFLOP/s measured", "attention_by: -8: it must be"},
    {"attention_by 8 9 1 TFLOP/s measured\nattention_by 7 9 1 TFLOP/s measured",
     "m:10: attention_by: its rows must ascend"},
    {"attention_by 8 9 1 TFLOP/s measured\nattention_by 8 9 1 TFLOP/s measured",
     "m:10: attention_by: its sizes must ascend"},
    {"attention_by 8 9 1 GFLOP/s measured", "attention_by: its unit is"},
};
LOOP(bad_lines_are_refused_by_name, 0, COUNT_OF(bad)) {
    char text[2000];
    cp_hardware hardware;
    snprintf(text, sizeof(text), "%s%s\n", good, bad[_i].line);
    must(cp_hardware_read("m", good, &hardware));
    refuses(cp_hardware_read("m", text, &hardware), CP_INVALID,
            bad[_i].because);
    ck_assert_ptr_null(strchr(cp_message(), '\n'));
}

LOOP(missing_fields_are_named, 0, 8) {
    char text[2000] = "", expected[80];
    cp_hardware hardware;
    const char *at = good;
    for (int line = 0; *at != '\0'; line++) {
        const size_t length = strcspn(at, "\n") + 1;
        if (line == _i)
            snprintf(expected, sizeof(expected),
                     line == 0 ? "it must begin: machine NAME"
                               : "m: %.*s is missing (",
                     (int)strcspn(at, " "), at);
        else
            strncat(text, at, length);
        at += length;
    }
    refuses(cp_hardware_read("m", text, &hardware), CP_INVALID, expected);
}

TEST(damage_is_read_or_refused) {
    const char *original = cp_built_in_text("gtt.machine");
    const size_t length = strlen(original);
    char *text = malloc(length + 1);
    uint64_t seed = 5;
    cp_hardware hardware;
    for (size_t n = 0; n < 2 * length; n++) { /* truncated, and changed */
        memcpy(text, original, length + 1);
        text[n / 2] = (char)(n % 2 == 0 ? 0 : harness_random(&seed) % 255 + 1);
        const cp_status status = cp_hardware_read("x", text, &hardware);
        ck_assert(status == CP_OK ||
                  (status == CP_INVALID && strchr(cp_message(), '\n') == NULL));
    }
    free(text);
}

TEST(omitted_fields_follow) {
    cp_hardware h, gtt, gti;
    static const char *const heads[][2] = {
        {"machine m\nlike nothing\n", "like: it names no built-in"},
        {"machine m\nlike gtt\nlike gti\n", "m:3: like: given twice"},
        {"machine m\nlike gtt\nlink_rate\n", "m:3: link_rate: no value"},
        {"like gtt\nmachine m\n", "m:1: it must begin: machine NAME"}};
    for (int n = 0; n < 4; n++)
        refuses(cp_hardware_read("m", heads[n][0], &h), CP_INVALID,
                heads[n][1]);
    must(cp_hardware_read("m", good, &h));
    ck_assert_double_eq(h.link_rate, 4e9);
    ck_assert_double_eq_tol(h.link_latency, 5e-6, 1e-18);
    ck_assert_double_eq(h.peak_8bit, h.peak);
    ck_assert_double_eq(h.attention_alone, 1e12);
    ck_assert_double_eq(h.all_to_all_latency, h.link_latency);
    ck_assert_double_eq(h.decode_overlap, 1);
    ck_assert_int_eq(h.gpus_per_node, 1);
    ck_assert_str_eq(h.origins[3].note, "with care");
    ck_assert_int_eq(h.origins[3].source, CP_SOURCE_MEASURED);
    must(cp_hardware_read("gtt", NULL, &gtt));
    must(cp_hardware_read("gti", NULL, &gti));
    ck_assert_str_eq(gti.name, "gti");
    ck_assert_double_eq(gti.link_rate, 3e9);
    ck_assert_double_eq(gti.attention_rate, gtt.attention_rate);
    ck_assert_double_eq(gti.step, gtt.step);
}

TEST(curves_pass_through_the_points) {
    const cp_curve curve = {3, {10, 1000, 2000}, {2, 8, 4}};
    static const double points[][2] = {
        {1, 2}, {10, 2}, {100, 4}, {1000, 8}, {2000, 4}, {2001, 4}, {1e18, 4}};
    for (int n = 0; n < COUNT_OF(points); n++)
        ck_assert_double_eq_tol(cp_curve_at(&curve, points[n][0]), points[n][1],
                                1e-12);
}

TEST(surfaces_pass_through_the_points) {
    const char *const lines = "attention_by 1 10 1 TFLOP/s measured a\n"
                              "attention_by 1 1000 4 TFLOP/s measured a\n"
                              "attention_by 100 10 16 TFLOP/s measured a\n";
    static const double points[][3] = {{1, 10, 1e12},
                                       {0.1, 100, 2e12},
                                       {1, 1e9, 4e12},
                                       {10, 1000, 8e12},
                                       {1e9, 10, 16e12}};
    char text[2000];
    cp_hardware one, two;
    snprintf(text, sizeof(text), "%s%s", good, lines);
    must(cp_hardware_read("m", text, &one));
    for (int n = 0; n < COUNT_OF(points); n++)
        ck_assert_double_eq_tol(
            cp_surface_at(&one.attention_by, points[n][0], points[n][1]),
            points[n][2], 1);
    char *wrote = written(&one);
    must(cp_hardware_read("w", wrote, &two));
    free(wrote);
    ck_assert_mem_eq(&one.attention_by, &two.attention_by,
                     sizeof(one.attention_by));
    /* Refuse a surface of 13 rows. */
    size_t used = (size_t)snprintf(text, sizeof(text), "%s", good);
    for (int row = 1; row <= 13; row++)
        used += (size_t)snprintf(text + used, sizeof(text) - used,
                                 "attention_by %d 1 1 TFLOP/s measured\n", row);
    refuses(cp_hardware_read("m", text, &two), CP_INVALID,
            "attention_by: more than 12 rows");
}

static cp_status read_bytes(const char *bytes, size_t length) {
    char path[] = "/tmp/longring-machine-XXXXXX";
    cp_hardware hardware;
    FILE *out = fdopen(mkstemp(path), "w");
    ck_assert_ptr_nonnull(out);
    fwrite(bytes, 1, length, out);
    ck_assert_int_eq(fclose(out), 0);
    const cp_status status = cp_hardware_read(path, NULL, &hardware);
    unlink(path);
    return status;
}

TEST(files_are_read) {
    static char big[70000];
    cp_hardware hardware;
    cp_model_sizes sizes;
    memset(big, '#', sizeof(big));
    must(read_bytes(good, strlen(good)));
    ck_assert_int_eq(read_bytes(good, sizeof(good)), CP_FILE);
    ck_assert_int_eq(read_bytes(big, sizeof(big)), CP_FILE);
    refuses(cp_hardware_read("no such", NULL, &hardware), CP_FILE,
            "none of b200 ethernet gti gtt h200 home laptop");
    refuses(cp_model_sizes_read("llama3-404b", NULL, &sizes), CP_FILE,
            "llama3-405b");
}

TEST(models_weigh_what_they_should) {
    const char *names[] = {"llama3-405b", "llama3-70b", "llama3-8b",
                           "smollm2-135m", "deepseek-v3-like"};
    cp_model_sizes m;
    cp_hardware machine;
    cp_pace pace;
    const cp_scenario call = {
        .model = &m, .hardware = &machine, .ranks = 1, .tensor = 1};
    must(cp_hardware_read("gtt", NULL, &machine));
    for (int n = 0; n < COUNT_OF(names); n++) {
        must(cp_model_sizes_read(names[n], NULL, &m));
        m.attention_bits = m.inner_bits = m.head_bits = 8;
        must(cp_pace_new(&call, &pace));
        ck_assert_double_eq_tol(cp_pace_weights(&pace) / (double)m.parameters,
                                1, 0.0025);
    }
    must(cp_model_sizes_read("llama3-405b", NULL, &m));
    must(cp_pace_new(&call, &pace));
    m.tables = 1;
    ck_assert_double_eq_tol(cp_pace_weights(&pace) / 8e9, 59.7, 0.05);
    static const char *const absurd[][2] = {
        {"kv_heads 5 heads", "m: query_heads, kv_heads"},
        {"layers 1000000 layers", ""},
        {"tables 3 tables", ""},
        {"cache_bytes 9 B", ""},
        {"value_dim 577 numbers", "values of 577 numbers"},
        {"rotary 64 numbers", "rotary, query_rank: without a latent"},
        {"query_rank 64 numbers", "rotary, query_rank: without a latent"},
        {"latent 300 numbers assumed\nrotary 128 numbers", "rotary: 128 of"},
        {"latent 577 numbers", "a head of dimension 577"},
        {"head_dim 4000000000000000000 numbers", ""}};
    for (int n = 0; n < COUNT_OF(absurd); n++) {
        char text[200];
        snprintf(text, sizeof(text), "model m\nlike llama3-8b\n%s assumed\n",
                 absurd[n][0]);
        refuses(cp_model_sizes_read("m", text, &m), CP_INVALID, absurd[n][1]);
    }
}

/* What fewer bits on the wire cost: the bytes of a rank, an answer's error, and
 * its bounds, from the shapes alone and from the LSE of the partials. Measured
 * on a layer in the middle of a model that reads a text, and on random numbers:
 * the last 150 tokens over those before, four ranks. Also how many of that
 * model's 32 next tokens are still the most likely. Prints CSV.
 *
 *   measure_wire MODEL.gguf TEXT
 *
 * The kernel of this program keeps what a layer gives it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "figures/tools.h"
#include "model/session.h"
#include "model/tokenizer.h"
#include "variants/variants.h"
#include "tests/harness/one_call.h"

/* The library's kernel, under another name. */
#define cp_attend_fast attend_as_ever
#include "reference/attend/fast.c"
#undef cp_attend_fast

enum { RANKS = 4, TOKENS = 600, FRESH = 150, GENERATED = 32 };

typedef struct {
    cp_shape shape;
    float *queries, *keys, *values; /* of TOKENS tokens */
} sent_tensors;

static sent_tensors kept;
static int64_t layers_until = -1; /* that which is kept */

static float *numbers(int64_t heads, int64_t dim) {
    float *all;
    need(cp_allocate(&all, TOKENS * heads * dim, sizeof(float), "a tensor"));
    return all;
}

static sent_tensors tensors_new(cp_shape shape) {
    return (sent_tensors){shape, numbers(shape.query_heads, shape.head_dim),
                          numbers(shape.kv_heads, shape.head_dim),
                          numbers(shape.kv_heads, shape.head_dim)};
}

cp_status cp_attend_fast(const cp_attention *call);

cp_status cp_attend_fast(const cp_attention *call) {
    const cp_shape *shape = call->shape;
    if (layers_until-- == 0) {
        const size_t row = (size_t)shape->head_dim * sizeof(float) * TOKENS;
        kept = tensors_new(*shape);
        memcpy(kept.queries, call->queries, row * (size_t)shape->query_heads);
        memcpy(kept.keys, call->keys, row * (size_t)shape->kv_heads);
        memcpy(kept.values, call->values, row * (size_t)shape->kv_heads);
    }
    return attend_as_ever(call);
}

/* Print a row but for its end. exact: output, then LSE, of no writing; if that
 * is what is asked for, they are written there. */
static void row(const char *name, const sent_tensors *tensors,
                cp_variant variant, cp_wire wire, float *exact) {
    const int64_t heads = tensors->shape.query_heads;
    const int64_t asks = heads * tensors->shape.head_dim, count = FRESH * asks;
    float *output = numbers(heads, tensors->shape.head_dim + 1);
    const one_call call = {
        tensors->shape, FRESH,
        TOKENS - FRESH, tensors->queries + (TOKENS - FRESH) * asks,
        tensors->keys,  tensors->values,
        output,         output + count};
    one_call_facts facts;
    need(one_call_answer(&call, RANKS, variant, wire, &facts));
    if (wire == CP_WIRE_FP32)
        memcpy(exact, output, (size_t)(count + FRESH * heads) * sizeof(float));
    printf("%s,%ld,%.3g,%.3g,%.3g,%.3g,%.3g,%.3g", name, facts.bytes,
           facts.before.output, facts.after.output,
           farthest(output, exact, count), facts.before.lse, facts.after.lse,
           farthest(output + count, exact + count, FRESH * heads));
    free(output);
}

/* Have the model read tokens over ranks, then generate tokens, or feed
 * those in generated; returns how many of these it would have generated. */
static int generate(const cp_model *model, int ranks, cp_variant variant,
                    cp_wire wire, const int32_t *tokens, bool first,
                    int32_t *generated) {
    const cp_session_options options = {.ranks = ranks,
                                        .sequences = 1,
                                        .capacity = TOKENS + GENERATED,
                                        .variant = variant,
                                        .wire = wire};
    const int64_t length = TOKENS, after = 0, one = 1;
    int64_t last = TOKENS - 1;
    const cp_sampler greedy = {0, 0};
    cp_session *session;
    int same = 0;
    need(cp_session_open(model, &options, &session));
    need(cp_session_prefill(session, &length, tokens, NULL));
    for (int n = 0; n < GENERATED; n++) {
        int32_t likely;
        need(cp_session_draw(session, 1, &last, &greedy, &likely));
        if (first)
            generated[n] = likely;
        same += generated[n] == likely;
        need(cp_session_decode(session, &one, &generated[n], NULL));
        last = after;
    }
    cp_session_close(session);
    return same;
}

static void rows(const char *model_name, const sent_tensors *tensors,
                 const cp_model *model, const int32_t *tokens) {
    static const cp_variant variants[] = {CP_PASS_KV, CP_PASS_Q};
    static const char *const wires[] = {"fp32", "bf16", "fp8", "int8"};
    float *exact =
        numbers(tensors->shape.query_heads, tensors->shape.head_dim + 1);
    int32_t generated[GENERATED];
    for (int v = 0; v < 2; v++)
        for (int w = 0; w < CP_WIRES; w++) {
            char name[64];
            snprintf(name, sizeof(name), "%s-%s-%s", model_name,
                     cp_variant_name(variants[v]), wires[w]);
            row(name, tensors, variants[v], (cp_wire)w, exact);
            if (model != NULL)
                printf(",%d,%d",
                       generate(model, RANKS, variants[v], (cp_wire)w, tokens,
                                v + w == 0, generated),
                       GENERATED);
            else
                printf(",,");
            printf("\n");
            fflush(stdout);
        }
    free(exact);
}

static char *text_of(const char *path, int64_t *bytes) {
    FILE *in = fopen(path, "rb");
    char *text;
    need(cp_allocate(&text, 1 << 16, 1, "a text"));
    *bytes = in != NULL ? (int64_t)fread(text, 1, 1 << 16, in) : 0;
    if (in != NULL)
        fclose(in);
    return text;
}

int main(int count, char **arguments) {
    cp_gguf *file = NULL;
    cp_tokenizer *tokenizer = NULL;
    cp_model *model = NULL;
    cp_ids ids = {0};
    int64_t bytes;
    int32_t generated[GENERATED];
    if (count != 3) {
        fprintf(stderr, "measure_wire MODEL.gguf TEXT\n");
        return 2;
    }
    char *text = text_of(arguments[2], &bytes);
    need(cp_gguf_open(arguments[1], &file));
    need(cp_tokenizer_new(file, &tokenizer));
    need(cp_tokenizer_encode(tokenizer, text, bytes, false, &ids));
    need(cp_model_open(&cp_backend_threads, file, &model));
    if (ids.count < TOKENS)
        need(cp_refuse("%s: %ld tokens; %d are read", arguments[2], ids.count,
                       TOKENS));
    layers_until = 15;
    generate(model, 1, CP_PASS_KV, CP_WIRE_FP32, ids.items, true, generated);
    layers_until = -1;
    sent_tensors random = tensors_new(kept.shape);
    fill(random.queries,
         TOKENS * random.shape.query_heads * random.shape.head_dim, 1);
    fill(random.keys, TOKENS * random.shape.kv_heads * random.shape.head_dim,
         2);
    fill(random.values, TOKENS * random.shape.kv_heads * random.shape.head_dim,
         3);
    puts("case,bytes,before,after,measured,lse_before,lse_after,lse_measured,"
         "agree,of");
    rows("model", &kept, model, ids.items);
    rows("random", &random, NULL, NULL);
    return 0;
}

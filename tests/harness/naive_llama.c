/* A Llama or Qwen decoder in float64, written to be obvious. It reads the file's
 * keys and weights itself, and shares nothing with the model except the GGUF parser
 * and the decoding of blocks. */
#include "naive_llama.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reference/model/dequantise.h"
#include "tests/expect.h"

typedef struct {
    const cp_gguf *file;
    cp_gguf_string family;
    bool halves; /* pairs are (i, i + rotary / 2), not (2i, 2i + 1) */
    int64_t blocks, width, inner, heads, kv_heads, dim, rotary;
    double base, epsilon;
    int64_t period; /* every period-th block attends; 0: all do */
} naive;

static double *get(int64_t count) {
    return room_for(count, sizeof(double));
}

/* The key of the file's family with this name; valid until the next call. */
static const char *key_of(const naive *m, const char *name) {
    static char key[128];
    snprintf(key, sizeof(key), "%s.%s", cp_gguf_show(m->family).text, name);
    return key;
}

static int64_t number(const naive *m, const char *name, int64_t otherwise) {
    int64_t value = otherwise;
    if (cp_gguf_has(m->file, key_of(m, name)))
        must(cp_gguf_integer(m->file, key_of(m, name), &value));
    return value;
}

static double fraction(const naive *m, const char *name, double otherwise) {
    double value = otherwise;
    if (cp_gguf_has(m->file, key_of(m, name)))
        must(cp_gguf_float(m->file, key_of(m, name), &value));
    return value;
}

/* All values of a tensor; NULL if there is no such tensor. */
static double *tensor(const naive *m, const char *name) {
    const cp_gguf_tensor *found = cp_gguf_find(m->file, name);
    if (found == NULL)
        return NULL;
    const int64_t count = found->extent[0] * found->extent[1];
    double *result = get(count);
    float *values = room_for(count, sizeof(float));
    must(cp_dequantise(found->type, found->data, count, values));
    for (int64_t i = 0; i < count; i++)
        result[i] = (double)values[i];
    return result;
}

static double *block_tensor(const naive *m, const char *role, int64_t block) {
    char name[128];
    snprintf(name, sizeof(name), "blk.%ld.%s", block, role);
    return tensor(m, name);
}

/* y[out] += w[out][in] x[in] */
static void add_product(const double *w, int64_t in, int64_t out,
                        const double *x, double *y) {
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++)
            y[o] += w[o * in + i] * x[i];
}

static void multiply(const double *w, int64_t in, int64_t out, const double *x,
                     double *y) {
    memset(y, 0, (size_t)out * sizeof(*y));
    add_product(w, in, out, x, y);
}

static void normalise(const naive *m, int64_t width, const double *weight,
                      const double *x, double *y) {
    double squares = 0.0;
    for (int64_t i = 0; i < width; i++)
        squares += x[i] * x[i];
    const double root = sqrt(squares / (double)width + m->epsilon);
    for (int64_t i = 0; i < width; i++)
        y[i] = x[i] / root * weight[i];
}

/* y[out] = w[out][in] x[in] + bias, normed head by head, as far as there are a
 * bias and a norm. */
static void project(const naive *m, const char *role, int64_t block,
                    int64_t heads, const double *x, double *y) {
    const int64_t out = heads * m->dim;
    char name[64];
    snprintf(name, sizeof(name), "%s.weight", role);
    multiply(block_tensor(m, name, block), m->width, out, x, y);
    snprintf(name, sizeof(name), "%s.bias", role);
    const double *bias = block_tensor(m, name, block);
    for (int64_t o = 0; o < out && bias != NULL; o++)
        y[o] += bias[o];
    snprintf(name, sizeof(name), "%s_norm.weight", role);
    const double *norm = block_tensor(m, name, block);
    for (int64_t h = 0; h < heads && norm != NULL; h++)
        normalise(m, m->dim, norm, y + h * m->dim, y + h * m->dim);
}

static void rotate(const naive *m, const double *factors, int64_t position,
                   int64_t heads, double *x) {
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < m->rotary / 2; i++) {
            double angle = (double)position /
                           pow(m->base, 2.0 * (double)i / (double)m->rotary);
            if (factors != NULL)
                angle /= factors[i];
            double *one = x + h * m->dim + (m->halves ? i : 2 * i);
            double *two = one + (m->halves ? m->rotary / 2 : 1);
            const double a = *one, b = *two;
            *one = a * cos(angle) - b * sin(angle);
            *two = a * sin(angle) + b * cos(angle);
        }
}

/* Attention of the query at one position over all keys up to it. */
static void look(const naive *m, int64_t position, const double *query,
                 const double *keys, const double *values, double *output) {
    double *scores = get(position + 1);
    for (int64_t h = 0; h < m->heads; h++) {
        const int64_t g = h / (m->heads / m->kv_heads);
        double largest = -INFINITY, sum = 0.0;
        for (int64_t k = 0; k <= position; k++) {
            scores[k] = 0.0;
            for (int64_t i = 0; i < m->dim; i++)
                scores[k] += query[h * m->dim + i] *
                             keys[(k * m->kv_heads + g) * m->dim + i];
            scores[k] /= sqrt((double)m->dim);
            largest = fmax(largest, scores[k]);
        }
        for (int64_t k = 0; k <= position; k++)
            sum += scores[k] = exp(scores[k] - largest);
        for (int64_t i = 0; i < m->dim; i++) {
            double value = 0.0;
            for (int64_t k = 0; k <= position; k++)
                value += scores[k] * values[(k * m->kv_heads + g) * m->dim + i];
            output[h * m->dim + i] = value / sum;
        }
    }
}

/* The output gates of Qwen3.5's attention are every other dim rows of attn_q. */
static void split_gates(const naive *m, int64_t block, double *gates,
                        const double *n, double *query) {
    const double *w = block_tensor(m, "attn_q.weight", block);
    const double *norm = block_tensor(m, "attn_q_norm.weight", block);
    const int64_t size = m->dim * m->width;
    for (int64_t h = 0; h < m->heads; h++, w += 2 * size) {
        multiply(w, m->width, m->dim, n, query + h * m->dim);
        normalise(m, m->dim, norm, query + h * m->dim, query + h * m->dim);
        multiply(w + size, m->width, m->dim, n, gates + h * m->dim);
    }
}

static double sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

/* Gated DeltaNet, one token and head at a time, as in the paper. */
static void remember(const naive *m, int64_t block, int64_t count, double *x) {
    const int64_t heads = number(m, "ssm.time_step_rank", 0);
    const int64_t kh = number(m, "ssm.group_count", 0);
    const int64_t dk = number(m, "ssm.state_size", 0);
    const int64_t dv = number(m, "ssm.inner_size", 0) / heads;
    const int64_t taps = number(m, "ssm.conv_kernel", 0);
    const int64_t channels = 2 * kh * dk + heads * dv;
    const double *norm = block_tensor(m, "attn_norm.weight", block);
    const double *conv = block_tensor(m, "ssm_conv1d.weight", block);
    const double *a = block_tensor(m, "ssm_a", block);
    const double *bias = block_tensor(m, "ssm_dt.bias", block);
    const double *last = block_tensor(m, "ssm_norm.weight", block);
    double *mixed = get(count * channels), *row = get(channels);
    double *z = get(heads * dv), *alpha = get(heads), *beta = get(heads);
    double *state = get(heads * dk * dv), *n = get(m->width);
    double *answer = get(heads * dv);
    for (int64_t t = 0; t < count; t++) {
        normalise(m, m->width, norm, x + t * m->width, n);
        multiply(block_tensor(m, "attn_qkv.weight", block), m->width, channels,
                 n, mixed + t * channels);
        multiply(block_tensor(m, "attn_gate.weight", block), m->width,
                 heads * dv, n, z);
        multiply(block_tensor(m, "ssm_alpha.weight", block), m->width, heads, n,
                 alpha);
        multiply(block_tensor(m, "ssm_beta.weight", block), m->width, heads, n,
                 beta);
        for (int64_t c = 0; c < channels; c++) {
            row[c] = 0;
            for (int64_t i = 0; i < taps && i <= t; i++)
                row[c] += conv[c * taps + taps - 1 - i] *
                          mixed[(t - i) * channels + c];
            row[c] *= sigmoid(row[c]);
        }
        for (int64_t h = 0; h < 2 * kh; h++) {
            double squares = 1e-6;
            for (int64_t d = 0; d < dk; d++)
                squares += row[h * dk + d] * row[h * dk + d];
            for (int64_t d = 0; d < dk; d++)
                row[h * dk + d] /=
                    sqrt(squares) * (h < kh ? sqrt((double)dk) : 1);
        }
        for (int64_t h = 0; h < heads; h++) {
            const double *q = row + h % kh * dk, *k = q + kh * dk;
            const double *v = row + 2 * kh * dk + h * dv;
            const double decay = exp(a[h] * log(1.0 + exp(alpha[h] + bias[h])));
            for (int64_t c = 0; c < dv; c++) {
                double *column = state + h * dk * dv + c, found = 0;
                for (int64_t d = 0; d < dk; d++)
                    found += (column[d * dv] *= decay) * k[d];
                answer[h * dv + c] = 0;
                for (int64_t d = 0; d < dk; d++) {
                    column[d * dv] += k[d] * sigmoid(beta[h]) * (v[c] - found);
                    answer[h * dv + c] += column[d * dv] * q[d];
                }
            }
            normalise(m, dv, last, answer + h * dv, answer + h * dv);
        }
        for (int64_t i = 0; i < heads * dv; i++)
            answer[i] *= z[i] * sigmoid(z[i]);
        add_product(block_tensor(m, "ssm_out.weight", block), heads * dv,
                    m->width, answer, x + t * m->width);
    }
}

static void attention(const naive *m, int64_t block, int64_t count, double *x) {
    const int64_t q = m->heads * m->dim, kv = m->kv_heads * m->dim;
    const double *norm = block_tensor(m, "attn_norm.weight", block);
    const double *wo = block_tensor(m, "attn_output.weight", block);
    const double *factors = tensor(m, "rope_freqs.weight");
    double *n = get(m->width), *query = get(q), *seen = get(q), *gates = get(q);
    double *keys = get(count * kv), *values = get(count * kv);
    for (int64_t t = 0; t < count; t++) {
        double *row = x + t * m->width;
        normalise(m, m->width, norm, row, n);
        if (m->period > 0)
            split_gates(m, block, gates, n, query);
        else
            project(m, "attn_q", block, m->heads, n, query);
        project(m, "attn_k", block, m->kv_heads, n, keys + t * kv);
        project(m, "attn_v", block, m->kv_heads, n, values + t * kv);
        rotate(m, factors, t, m->heads, query);
        rotate(m, factors, t, m->kv_heads, keys + t * kv);
        look(m, t, query, keys, values, seen);
        for (int64_t i = 0; i < q && m->period > 0; i++)
            seen[i] *= sigmoid(gates[i]);
        add_product(wo, q, m->width, seen, row);
    }
}

static void feed_forward(const naive *m, int64_t block, int64_t count,
                         double *x) {
    const double *norm = block_tensor(
        m, m->period > 0 ? "post_attention_norm.weight" : "ffn_norm.weight",
        block);
    const double *wg = block_tensor(m, "ffn_gate.weight", block);
    const double *wu = block_tensor(m, "ffn_up.weight", block);
    const double *wd = block_tensor(m, "ffn_down.weight", block);
    double *n = get(m->width);
    double *gate = get(m->inner), *up = get(m->inner);
    for (int64_t t = 0; t < count; t++) {
        double *row = x + t * m->width;
        normalise(m, m->width, norm, row, n);
        multiply(wg, m->width, m->inner, n, gate);
        multiply(wu, m->width, m->inner, n, up);
        for (int64_t i = 0; i < m->inner; i++)
            gate[i] = gate[i] / (1.0 + exp(-gate[i])) * up[i];
        add_product(wd, m->inner, m->width, gate, row);
    }
}

void naive_llama(const cp_gguf *file, int64_t count, const int32_t *tokens,
                 float *logits) {
    naive m = {.file = file};
    must(cp_gguf_text(file, "general.architecture", &m.family));
    m.halves = !cp_gguf_is(m.family, "llama");
    m.blocks = number(&m, "block_count", 0);
    m.width = number(&m, "embedding_length", 0);
    m.inner = number(&m, "feed_forward_length", 0);
    m.heads = number(&m, "attention.head_count", 1);
    m.kv_heads = number(&m, "attention.head_count_kv", m.heads);
    m.dim = number(&m, "attention.key_length", m.width / m.heads);
    m.period = number(&m, "full_attention_interval", 0);
    m.rotary = number(&m, "rope.dimension_count", m.dim);
    m.epsilon = fraction(&m, "attention.layer_norm_rms_epsilon", NAN);
    m.base = fraction(&m, "rope.freq_base", 10000.0);
    const double *embedding = tensor(&m, "token_embd.weight");
    const double *output = tensor(&m, "output.weight");
    const double *norm = tensor(&m, "output_norm.weight");
    const int64_t words = cp_gguf_find(file, "token_embd.weight")->extent[1];
    double *x = get(count * m.width), *scores = get(words);
    for (int64_t t = 0; t < count; t++)
        memcpy(x + t * m.width, embedding + tokens[t] * m.width,
               (size_t)m.width * sizeof(double));
    for (int64_t b = 0; b < m.blocks; b++) {
        if (m.period > 0 && (b + 1) % m.period != 0)
            remember(&m, b, count, x);
        else
            attention(&m, b, count, x);
        feed_forward(&m, b, count, x);
    }
    for (int64_t t = 0; t < count; t++) {
        normalise(&m, m.width, norm, x + t * m.width, x + t * m.width);
        multiply(output != NULL ? output : embedding, m.width, words,
                 x + t * m.width, scores);
        for (int64_t w = 0; w < words; w++)
            logits[t * words + w] = (float)scores[w];
    }
}

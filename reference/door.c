/* Tangled from book/00-million.nw; edit the chapter. */
/* Attention over a sequence that no rank holds whole: sharded by zigzag, keys
 * and values passed around a ring of threads, partial results merged by their
 * log-sum-exps, and the result held to dense attention.
 *
 *   cc -O2 -pthread door.c -lm && ./a.out [RANKS [TOKENS]]
 *
 * One file, the C library and POSIX threads. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 4, DIM = 16, WIDTH = HEADS * DIM };
enum { MOST_RANKS = 64, MOST_TOKENS = 20000 };

/* Some tokens: their positions in the sequence, and a row of keys and a row of
 * values for each. */
typedef struct {
    int count, owner;
    const int *positions;       /* [count] */
    const float *keys, *values; /* [count][HEADS][DIM] */
} block;

/* The link from one rank to the next has room for one block. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    block held;
    int is_full;
} link;

typedef struct {
    int rank, ranks;
    int *positions; /* [count] */
    float *queries, *keys, *values;
    int count;
    float *output, *lse; /* [count][HEADS][DIM], [count][HEADS] */
    link *in, *out;
    int met[MOST_RANKS]; /* whose keys came, hop by hop */
    long pairs;          /* of a query and a key that it may see; all heads */
} rank_state;
/* Deal out a sequence in 2 N chunks: rank r holds chunk r and, from the other
 * end, chunk 2 N - 1 - r. Late queries see more keys than early ones; a rank
 * with some of both has as much work as any other. */
static int holder_of(int position, int tokens, int ranks) {
    const int chunk = (int)((long)position * 2 * ranks / tokens);
    return chunk < ranks ? chunk : 2 * ranks - 1 - chunk;
}
/* Attention of one query over the keys of a block that it may see: those at its
 * own position and before. The sum of weights comes back as its logarithm. */
static long attend_query(const float *query, int position, const block *keys,
                         int head, float *output, float *lse) {
    float most = -INFINITY, sum = 0.0f;
    long pairs = 0;
    memset(output, 0, DIM * sizeof(float));
    for (int j = 0; j < keys->count; j++) {
        const float *key = keys->keys + j * WIDTH + head * DIM;
        const float *value = keys->values + j * WIDTH + head * DIM;
        float score = 0.0f;
        if (keys->positions[j] > position)
            continue;
        for (int d = 0; d < DIM; d++)
            score += query[d] * key[d];
        score /= sqrtf(DIM);
        const float level = fmaxf(most, score); /* the largest score so far */
        const float scale = expf(most - level), weight = expf(score - level);
        sum = sum * scale + weight;
        for (int d = 0; d < DIM; d++)
            output[d] = output[d] * scale + weight * value[d];
        most = level;
        pairs++;
    }
    for (int d = 0; d < DIM && pairs > 0; d++)
        output[d] /= sum;
    *lse = most + logf(sum); /* of no key: -infinity */
    return pairs;
}
/* Two answers to one query, over different keys, become the answer over all:
 * each counts as much as its sum of weights. */
static void merge(float *output, float *lse, const float *other,
                  float other_lse) {
    const float most = fmaxf(*lse, other_lse);
    if (other_lse == -INFINITY)
        return;
    const float a = expf(*lse - most), b = expf(other_lse - most);
    for (int d = 0; d < DIM; d++)
        output[d] = (a * output[d] + b * other[d]) / (a + b);
    *lse = most + logf(a + b);
}
static void attend_block(rank_state *r, const block *keys) {
    float partial[DIM], lse;
    for (int i = 0; i < r->count; i++)
        for (int head = 0; head < HEADS; head++) {
            const int at = i * HEADS + head;
            r->pairs += attend_query(r->queries + at * DIM, r->positions[i],
                                     keys, head, partial, &lse);
            merge(r->output + at * DIM, &r->lse[at], partial, lse);
        }
}
static void send(link *to, const block *keys) {
    pthread_mutex_lock(&to->lock);
    while (to->is_full)
        pthread_cond_wait(&to->changed, &to->lock);
    to->held = *keys;
    to->is_full = 1;
    pthread_cond_broadcast(&to->changed);
    pthread_mutex_unlock(&to->lock);
}

static block receive(link *from) {
    pthread_mutex_lock(&from->lock);
    while (!from->is_full)
        pthread_cond_wait(&from->changed, &from->lock);
    const block keys = from->held;
    from->is_full = 0;
    pthread_cond_broadcast(&from->changed);
    pthread_mutex_unlock(&from->lock);
    return keys;
}
/* The ring. Queries stay; keys and values go round. A rank sends on what it
 * holds before it attends to it, so that the message travels meanwhile. */
static void *run_rank(void *state) {
    rank_state *r = state;
    block keys = {r->count, r->rank, r->positions, r->keys, r->values};
    for (int hop = 0; hop < r->ranks; hop++) {
        if (hop + 1 < r->ranks)
            send(r->out, &keys);
        r->met[hop] = keys.owner;
        attend_block(r, &keys);
        if (hop + 1 < r->ranks)
            keys = receive(r->in);
    }
    return NULL;
}
/* Numbers between -1 and 1 that depend on what, which and nothing else. */
static float number(int what, int which) {
    unsigned long long x = (unsigned long long)what << 40 | (unsigned)which;
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdULL;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ULL;
    return (float)(x >> 40) * 0x1p-23f - 1.0f;
}

static void fail(const char *why) {
    perror(why);
    exit(1);
}

static void *room(size_t count, size_t size) {
    void *memory = calloc(count > 0 ? count : 1, size);
    if (memory == NULL)
        fail("no memory");
    return memory;
}

static void fill_rank(rank_state *r, int rank, int ranks, int tokens) {
    r->rank = rank;
    r->ranks = ranks;
    r->positions = room((size_t)tokens, sizeof(int));
    for (int p = 0; p < tokens; p++)
        if (holder_of(p, tokens, ranks) == rank)
            r->positions[r->count++] = p;
    const size_t numbers = (size_t)r->count * WIDTH;
    r->queries = room(numbers, sizeof(float));
    r->keys = room(numbers, sizeof(float));
    r->values = room(numbers, sizeof(float));
    r->output = room(numbers, sizeof(float));
    r->lse = room((size_t)r->count * HEADS, sizeof(float));
    for (int i = 0; i < r->count * WIDTH; i++) {
        const int which = r->positions[i / WIDTH] * WIDTH + i % WIDTH;
        r->queries[i] = 4.0f * number(0, which);
        r->keys[i] = number(1, which);
        r->values[i] = number(2, which);
    }
    for (int i = 0; i < r->count * HEADS; i++)
        r->lse[i] = -INFINITY; /* nothing has been seen */
}
/* Dense attention in double, from the definition: no ranks, no blocks. Returns
 * the largest difference of one query's answer. */
static double check_query(const float *output, int position, int head) {
    double weights = 0, sum[DIM] = {0}, worst = 0;
    for (int k = 0; k <= position; k++) {
        double score = 0;
        for (int d = 0; d < DIM; d++) {
            const int at = head * DIM + d;
            score += 4.0 * (double)number(0, position * WIDTH + at) *
                     (double)number(1, k * WIDTH + at);
        }
        const double weight = exp(score / sqrt(DIM));
        weights += weight;
        for (int d = 0; d < DIM; d++)
            sum[d] += weight * (double)number(2, k * WIDTH + head * DIM + d);
    }
    for (int d = 0; d < DIM; d++) {
        const double off = fabs((double)output[d] - sum[d] / weights);
        worst = off <= worst ? worst : off; /* NaN is not <= anything */
    }
    return worst;
}
static void print_rank(const rank_state *r) {
    printf("rank %d holds", r->rank);
    for (int i = 0; i < r->count; i++) {
        const int begins = i == 0 || r->positions[i - 1] + 1 < r->positions[i];
        const int ends =
            i + 1 == r->count || r->positions[i] + 1 < r->positions[i + 1];
        if (begins)
            printf(" %d", r->positions[i]);
        if (ends && !begins)
            printf("-%d", r->positions[i]);
    }
    printf("; met the keys of");
    for (int hop = 0; hop < r->ranks; hop++)
        printf(" %d", r->met[hop]);
    printf("; %ld pairs a head\n", r->pairs / HEADS);
}
int main(int count, char **arguments) {
    const int ranks = count > 1 ? atoi(arguments[1]) : 4;
    const int tokens = count > 2 ? atoi(arguments[2]) : 96;
    static rank_state all[MOST_RANKS];
    static link links[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    if (ranks < 1 || ranks > MOST_RANKS || tokens < 1 || tokens > MOST_TOKENS) {
        fprintf(stderr, "%d ranks, %d tokens; expected 1 to %d and 1 to %d\n",
                ranks, tokens, MOST_RANKS, MOST_TOKENS);
        return 2;
    }
    for (int r = 0; r < ranks; r++) {
        fill_rank(&all[r], r, ranks, tokens);
        pthread_mutex_init(&links[r].lock, NULL);
        pthread_cond_init(&links[r].changed, NULL);
        all[r].out = &links[r]; /* to the next */
        all[r].in = &links[(r + ranks - 1) % ranks];
    }
    for (int r = 0; r < ranks; r++)
        if (pthread_create(&threads[r], NULL, run_rank, &all[r]) != 0)
            fail("no thread");
    double worst = 0;
    for (int r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
        print_rank(&all[r]);
        for (int i = 0; i < all[r].count * HEADS; i++) {
            const double off =
                check_query(all[r].output + i * DIM,
                            all[r].positions[i / HEADS], i % HEADS);
            worst = off <= worst ? worst : off;
        }
    }
    printf(
        "%d answers of %d heads differ from dense attention by %.1e at most\n",
        tokens, HEADS, worst);
    return worst <= 1e-5 ? 0 : 1;
}

/* Tangled from book/labs/09-threshold.nw; the skeleton; write your answer here. */
/* Which ring sends less, or hides what it sends: exactly, without floating
 * point. Every product that is needed fits 128 bits, but not always 64. */
#ifndef THRESHOLD_H
#define THRESHOLD_H

#include <stdbool.h>
#include <stdint.h>

__extension__ typedef __int128 wide;

/* One attention call of a rank. */
typedef struct {
    int64_t ranks;                           /* N */
    int64_t query_rows, key_rows;            /* padded blocks of a rank */
    int64_t query_heads, kv_heads, head_dim; /* N_H, N_KV, D_H */
    int64_t element_bytes;                   /* e: of Q, K and V */
} freight;

/* Bytes that a rank sends by pass-KV: keys and values, N - 1 hops. */
wide kv_bytes(const freight *call);

/* By pass-Q: queries, N - 1 hops, and a partial returned to each other rank:
 * output and LSE, numbers of 4 bytes. */
wide q_bytes(const freight *call);

/* Does pass-KV send no more bytes than pass-Q? */
bool keys_are_cheaper(const freight *call);

/* For a sequence of P = cached tokens and unpadded blocks: the smallest number
 * T >= 1 of new tokens for which pass-KV sends no more than pass-Q, for every N
 * > 1; -1 if there is none, or if it does not fit 64 bits. Only heads, head_dim
 * and element_bytes of call are read. */
int64_t least_tokens(const freight *call, int64_t cached);

/* Is sending keys and values of the P + T tokens hidden under attention, hop by
 * hop, for T >= 1 and N > 1? A hop computes 4 T (P + T) N_H D_H / N^2 FLOPs, at
 * flops a second (C), and sends 2 (P + T) N_KV D_H e / N bytes, at bandwidth
 * bytes a second (BW). Equal times count as hidden. Only heads, head_dim and
 * element_bytes of call are read. */
bool keys_hide(int64_t fresh, int64_t cached, int64_t ranks,
               const freight *call, int64_t flops, int64_t bandwidth);

#endif

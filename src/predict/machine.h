/* Tangled from book/15-machines.nw; edit the chapter. */
/* Machine descriptions: what a GPU, its node and its network can do, and who
 * says so. Measures nothing. */
#ifndef CP_MACHINE_H
#define CP_MACHINE_H

#include "predict/description.h"

enum { CP_HARDWARE_FIELDS = 36 };

/* A machine, per GPU. What a line of its description leaves out is as
 * the field's comment says. */
typedef struct {
    char name[CP_NAME_BYTES];
    int64_t gpus_per_node;      /* 1 */
    int64_t cores;              /* that all ranks share; 0: each has its own */
    double memory, memory_rate; /* bytes, bytes/s */
    double memory_fraction;     /* of the rate, by elementwise kernels; 1 */
    /* Linear layers: peak times fraction, or the curve, by rows. */
    double peak,
        peak_8bit; /* numbers of 16 bits or more; of 8 or fewer: peak */
    double linear_fraction;
    cp_curve linear_at;
    double width_bytes, inner_bytes; /* moved by the elementwise kernels of a
                                        layer, per token and number; 0 */
    /* Attention: FLOP/s over the pairs that are not masked. */
    double attention_rate;   /* in a ring */
    double attention_alone;  /* of one rank: attention_rate */
    cp_curve attention_at;   /* by queries of a block; then it is the rate */
    cp_surface attention_by; /* by queries and keys; then it is the rate */
    /* Links. */
    /* Links in a node, for tensor parallelism; 0: there are none. */
    double node_rate, node_latency;
    /* Links between nodes: peak is of the data sheet, the rest is reached. */
    double link_peak; /* link_rate */
    double link_rate, link_latency;
    cp_curve exchange_at; /* seconds by bytes, instead of the two */
    double all_to_all_rate, all_to_all_latency; /* those of the link */
    cp_curve all_to_all_at; /* seconds by bytes that a rank sends */
    double overlap; /* share of an exchange that arithmetic can hide; 1 */
    /* Overheads. */
    /* What neither arithmetic nor bytes explain; all 0. */
    double launch; /* seconds to issue an operation that computes */
    double step;   /* at the start of a ring, and after each hop */
    double call;   /* of a call over a kept cache, once (Table 4 alone) */
    double jitter; /* standard deviation of an attention or an exchange of a
                      prefill */
    /* Decode constants. */
    /* Decode: one token of each sequence, from a captured graph. */
    double decode_weight_fraction; /* of the memory rate, reading weights; 1 */
    double decode_layer;           /* seconds a layer beside weights; 0 */
    double decode_attend;       /* seconds an attention, without keys; launch */
    double decode_key_fraction; /* of the memory rate, reading keys; 1 */
    double decode_all_to_all;   /* seconds; all_to_all_latency */
    double decode_overlap;      /* overlap */
    double decode_padding; /* 1: padding rows are computed like others; 0 */
    cp_origin origins[CP_HARDWARE_FIELDS];
} cp_hardware;

/* The machine of that name (gtt, gti, h200, laptop), or of the file at that
 * path. Fails as cp_description_read does. */
cp_status cp_hardware_read(const char *name, cp_hardware *hardware);

/* The same from a text that messages call label. */
cp_status cp_hardware_parse(const char *label, const char *text,
                            cp_hardware *hardware);

/* Write a description that cp_hardware_read reads. */
void cp_hardware_write(const cp_hardware *hardware, FILE *out);

/* How the fields are called, and where they lie. values and origins are those
 * of hardware, which must outlive it. */
cp_description cp_hardware_description(cp_hardware *hardware);

#endif

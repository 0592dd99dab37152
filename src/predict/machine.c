/* Tangled from book/15-machines.nw; edit the chapter. */
/* Machine descriptions: the fields, and what is meant when one is left out. */
#include "predict/machine.h"

#define AT(field) offsetof(cp_hardware, field)
static const cp_field fields[CP_HARDWARE_FIELDS] = {
    {"gpus_per_node", CP_FIELD_COUNT, AT(gpus_per_node), "GPUs", 1, false,
     "GPUs of a node"},
    {"cores", CP_FIELD_COUNT, AT(cores), "cores", 1, false,
     "cores that all ranks share"},
    {"memory", CP_FIELD_POSITIVE, AT(memory), "GB", 1e9, true,
     "memory of a GPU"},
    {"memory_rate", CP_FIELD_POSITIVE, AT(memory_rate), "GB/s", 1e9, true,
     "peak bandwidth of that memory"},
    {"memory_fraction", CP_FIELD_FRACTION, AT(memory_fraction), "of-peak", 1,
     false, "reached by kernels that only move numbers"},
    /* Fields of arithmetic. */
    {"peak", CP_FIELD_POSITIVE, AT(peak), "TFLOP/s", 1e12, true,
     "peak of linear layers, numbers of 16 bits or more"},
    {"peak_8bit", CP_FIELD_POSITIVE, AT(peak_8bit), "TFLOP/s", 1e12, false,
     "peak of linear layers, numbers of 8 bits"},
    {"linear_fraction", CP_FIELD_FRACTION, AT(linear_fraction), "of-peak", 1,
     true, "reached by linear layers over many tokens"},
    {"linear_at", CP_FIELD_CURVE, AT(linear_at), "TFLOP/s", 1e12, false,
     "linear layers, by rows"},
    {"width_bytes", CP_FIELD_TIME, AT(width_bytes), "B", 1, false,
     "moved a layer by norms and residuals, per token and number of the width"},
    {"inner_bytes", CP_FIELD_TIME, AT(inner_bytes), "B", 1, false,
     "moved a layer by the gate, per token and number of the inner width"},
    {"attention_rate", CP_FIELD_POSITIVE, AT(attention_rate), "TFLOP/s", 1e12,
     true, "attention in a ring, over pairs that are not masked"},
    {"attention_alone", CP_FIELD_POSITIVE, AT(attention_alone), "TFLOP/s", 1e12,
     false, "attention of one rank in one kernel"},
    {"attention_at", CP_FIELD_CURVE, AT(attention_at), "TFLOP/s", 1e12, false,
     "attention, by queries of a block"},
    {"attention_by", CP_FIELD_SURFACE, AT(attention_by), "TFLOP/s", 1e12, false,
     "attention, by queries that follow each other and the keys that each "
     "sees"},
    /* Fields of links. */
    {"node_rate", CP_FIELD_POSITIVE, AT(node_rate), "GB/s", 1e9, false,
     "all-reduce in a node, one way"},
    {"node_latency", CP_FIELD_TIME, AT(node_latency), "us", 1e-6, false,
     "of an all-reduce in a node"},
    {"link_peak", CP_FIELD_POSITIVE, AT(link_peak), "GB/s", 1e9, false,
     "peak between nodes"},
    {"link_rate", CP_FIELD_POSITIVE, AT(link_rate), "GB/s", 1e9, true,
     "an exchange of a ring, one way, between nodes"},
    {"link_latency", CP_FIELD_TIME, AT(link_latency), "us", 1e-6, true,
     "of an exchange between nodes"},
    {"exchange_at", CP_FIELD_CURVE, AT(exchange_at), "us", 1e-6, false,
     "an exchange, by bytes"},
    {"all_to_all_rate", CP_FIELD_POSITIVE, AT(all_to_all_rate), "GB/s", 1e9,
     false, "all-to-all, one way"},
    {"all_to_all_latency", CP_FIELD_TIME, AT(all_to_all_latency), "us", 1e-6,
     false, "of an all-to-all"},
    {"all_to_all_at", CP_FIELD_CURVE, AT(all_to_all_at), "us", 1e-6, false,
     "an all-to-all, by bytes that a rank sends"},
    {"overlap", CP_FIELD_SHARE, AT(overlap), "share", 1, false,
     "share of an exchange that arithmetic can hide"},
    /* Fields of overheads. */
    {"launch", CP_FIELD_TIME, AT(launch), "us", 1e-6, false,
     "to issue an operation that computes"},
    {"step", CP_FIELD_TIME, AT(step), "us", 1e-6, false,
     "to start a ring, and after each hop"},
    {"call", CP_FIELD_TIME, AT(call), "us", 1e-6, false,
     "of a call over a kept cache, once"},
    {"jitter", CP_FIELD_TIME, AT(jitter), "us", 1e-6, false,
     "standard deviation of an attention or an exchange of a prefill"},
    /* Fields of decode. */
    {"decode_weight_fraction", CP_FIELD_FRACTION, AT(decode_weight_fraction),
     "of-peak", 1, false,
     "of the memory rate, reading weights for a few tokens"},
    {"decode_layer", CP_FIELD_TIME, AT(decode_layer), "us", 1e-6, false,
     "a layer of a decode step beside its weights and its attention"},
    {"decode_attend", CP_FIELD_TIME, AT(decode_attend), "us", 1e-6, false,
     "an attention of a decode step beside its keys"},
    {"decode_key_fraction", CP_FIELD_FRACTION, AT(decode_key_fraction),
     "of-peak", 1, false, "of the memory rate, reading keys for a few queries"},
    {"decode_all_to_all", CP_FIELD_TIME, AT(decode_all_to_all), "us", 1e-6,
     false, "the all-to-all of a decode step beside its bytes"},
    {"decode_overlap", CP_FIELD_SHARE, AT(decode_overlap), "share", 1, false,
     "share of an exchange of a decode step that arithmetic can hide"},
    {"decode_padding", CP_FIELD_SHARE, AT(decode_padding), "share", 1, false,
     "1 if padding rows of a decode step are computed like the others"},
};
#undef AT

static void fill(double *value, double otherwise) {
    if (*value < 0)
        *value = otherwise;
}

static void fill_all(cp_hardware *h) {
    fill(&h->peak_8bit, h->peak);
    fill(&h->attention_alone, h->attention_rate);
    fill(&h->link_peak, h->link_rate);
    fill(&h->all_to_all_rate, h->link_rate);
    fill(&h->all_to_all_latency, h->link_latency);
    fill(&h->decode_attend, h->launch);
    fill(&h->decode_all_to_all, h->all_to_all_latency);
    fill(&h->decode_overlap, h->overlap);
}
static void clear(cp_hardware *h) {
    *h = (cp_hardware){.gpus_per_node = 1,
                       .memory_fraction = 1,
                       .overlap = 1,
                       .decode_weight_fraction = 1,
                       .decode_key_fraction = 1,
                       .peak_8bit = -1,
                       .attention_alone = -1,
                       .link_peak = -1,
                       .all_to_all_rate = -1,
                       .all_to_all_latency = -1,
                       .decode_attend = -1,
                       .decode_all_to_all = -1,
                       .decode_overlap = -1};
}

cp_description cp_hardware_description(cp_hardware *hardware) {
    return (cp_description){"machine",          fields,
                            CP_HARDWARE_FIELDS, hardware,
                            hardware->origins,  hardware->name};
}

cp_status cp_hardware_parse(const char *label, const char *text,
                            cp_hardware *hardware) {
    clear(hardware);
    const cp_description description = cp_hardware_description(hardware);
    const cp_status status = cp_description_parse(&description, label, text);
    fill_all(hardware);
    return status;
}

cp_status cp_hardware_read(const char *name, cp_hardware *hardware) {
    clear(hardware);
    const cp_description description = cp_hardware_description(hardware);
    const cp_status status = cp_description_read(&description, name);
    fill_all(hardware);
    return status;
}

void cp_hardware_write(const cp_hardware *hardware, FILE *out) {
    cp_hardware copy = *hardware;
    const cp_description description = cp_hardware_description(&copy);
    cp_description_write(&description, out);
}

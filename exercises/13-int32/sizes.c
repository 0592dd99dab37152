/* Tangled from book/labs/13-int32.nw; the skeleton; write your answer here. */
/* Sizes and positions of long sequences. */
#include "sizes.h"

#include <math.h>

#define TURN 6.283185307179586

int64_t element_at(int64_t row, int head, int i, int heads, int dim) {
    /* Find the index in a tensor. */
    const int at = ((int)row * heads + head) * dim + i;
    return at;
}

bool tensor_bytes(int64_t rows, int64_t heads, int64_t dim, int64_t element,
                  int64_t *bytes) {
    /* Multiply, or refuse. */
    *bytes = (int)(rows * heads * dim * element);
    return *bytes >= 0;
}

int64_t causal_pairs(int64_t fresh, int64_t cached) {
    /* Count pairs. */
    return (int)fresh * (int)cached + (int)fresh * ((int)fresh + 1) / 2;
}

int64_t part_start(int64_t count, int i, int parts) {
    /* Divide evenly. */
    return (int)count * i / parts;
}

int compare_positions(const void *a, const void *b) {
    const int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    /* Order two positions. */
    return (int)(left - right);
}

float angle_of(int64_t position, double wavelength) {
    /* Find the angle at a position. */
    return fmodf((float)position * (float)(TURN / wavelength), (float)TURN);
}

int64_t room_left(uint32_t length, uint32_t room) {
    /* Subtract. */
    return room - length;
}

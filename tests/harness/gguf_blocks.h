/* One block of each GGUF tensor type, as hexadecimal bytes, and a checksum of
 * the values that the Python package gguf gives for it: gguf.quants.dequantize,
 * bit for bit. Numbers only. */
#ifndef HARNESS_BLOCKS_H
#define HARNESS_BLOCKS_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    int type, count; /* ggml's number; values in the block */
    uint64_t sum;    /* checksum of their bits */
    const char *hex;
} golden_block;

static const golden_block golden_blocks[] = {
    {1, 8, 0x52b10851671899c5, "ce36c83a473829baf0b434b8703315af"},
    {30, 8, 0x68848e0b7af939c5, "7ebf063fe03e27bf9d3f0bbe0a3f283e"},
    {8, 32, 0x9c16378a6c1f5a25,
     "4ea3ccd7e228766121db2445ca8e1de6cf99b28d61df6f94c7a7350036be06aba4d1"},
    {2, 32, 0xa6456b8892b2a5a5, "4c23735f839ff237f201aca864f7150a7223"},
    {3, 32, 0x6c7a75b6d3f743a5, "761f812a5befc3d70bf9db8e3834b5179d6d5c1f"},
    {6, 32, 0x00dfef64048d35a5, "b4a498d9a993d62c45a0ce228aa75df688f659560f09"},
    {7, 32, 0x06bb4ca9291014a5,
     "921f802800b9b64a752779371c1c565795dcd549cc9b19ef"},
    {10, 256, 0xe5aec274e7a728a5,
     "6df99585716950270eeb85b321393fb39f0b2d59568aa870a9e281407f75de9b6c514028"
     "9a9080438845af431649d86af0474ae425bb00e370e66dc1463ee60594c446c7f6916342"
     "34ee972fe52298cda31e5b2c"},
    {11, 256, 0x0b7419db3c600725,
     "cb94337d266b1177d7e4f4ad2a8633aab9b51d951d84a32907c83322f9511fb7fd663733"
     "e3849a20a4c9117d4501563e014bb9a5ee4e81866ce02e0cebfc74f7fa212a2b93175b3e"
     "0c00fbf7387f783a305e77f7249d6a0b6bdd718033688a77134ab889971cde19dacdc773"
     "601d"},
    {12, 256, 0x735fea67f9769a41,
     "ed1718a5abde186bc50eafd3fb81e12c4ff58124213e2785178ecb66888b58551abce0a5"
     "2335e6271da0f2597d1605aaa17bdbdba13ee78501118d222f7f96cdfe6603c4d61dfa05"
     "ff370b5722a6393a8b8c715dc6c859ba849fc5ed2593159ee7482269320fb2c1deb97bbc"
     "94b47290ec60c4dcb7480486ca5f1032536322e4aa558ae0e901bbab18eb22f302fa477"
     "4"},
    {13, 256, 0x5f8988404d2d9265,
     "2b23cea82d43a50ee016bfd8dc9cb95d5c14f4f23cc5de987507abaf7782b4a18a98c77e"
     "2d0b8863753418072274a019eac49716ab5f30fd224f693814c2b7a6ac21f39d5341b70e"
     "9e5cdd5776323e8b001b1c44ee3a13aa86f510476616857c776b7c54987104d6cf4c2463"
     "ef2a7c46e92b16556d8723ef948000d358c0531181d212721c1ba8d4e1f78c29fc77b9e8"
     "cf7cecb4fc60ff47fb34934316aeebb374e21415f2b0cef4ba9f1247ae9dac37"},
    {14, 256, 0xa88bd6f428e97a3b,
     "ae37580044765b14df9c0b0feae65dc1bd69a0bc0be02918d03b80c04ca266ddc90153f8"
     "534780771a863cc26e19737e2d884c301c30e7b35b438eafc551999ce7530b9645763989"
     "31f2de7e47297f1d0c99520f268aab70a187fcbd1b9208afc4253a918428248cbc0d3896"
     "856e0f1e2f9585bc70d16dc36d2c495180be6e10f201b48958882920423539bb46d12bcd"
     "ebd808df620aa45f5a345a87fb49db5343d2e8ab6c464f1402f0ffb266d2dff6d305ff7c"
     "9d35409f1f4b53b2ec6794959f6f2799c64c54d9ececde31781e15034f9f"},
    {20, 32, 0x4c75a7d1a19e5f25, "193588f60d0885387248a0ddc730f12876c6"},
    {23, 256, 0x5e65e9664ef24f43,
     "6321db45bbe23f3ad75e10da741d1d5b49388eb2a425e8c46c6f1b9d0e8539c8609a6b75"
     "148e3a8b8ab7db84973b6ae3a6472bc06881273d87b9e409b3bda3ee4cab1f8beadc8035"
     "15fce7b75894de147f55c4236121031049eb91f81f719491cd011f1c0570b07d033b47c1"
     "dc24206d843f94177ea9cdc552add85b2aeafb13813aefba18602772"},
};

/* ggml's numbers of all supported types: these, and fp32. */
static const int block_types[] = {0,  1,  30, 8,  2,  3,  6, 7,
                                  10, 11, 12, 13, 14, 20, 23};

/* The bytes of a block, at most 256; returns how many. */
static inline int golden_bytes(const golden_block *golden, unsigned char *to) {
    int length = 0;
    for (unsigned byte; sscanf(golden->hex + 2 * length, "%2x", &byte) == 1;
         length++)
        to[length] = (unsigned char)byte;
    return length;
}

/* FNV-1a over the values' bits, with -0 as 0. */
static inline uint64_t golden_sum(const float *values, int count) {
    uint64_t sum = 14695981039346656037u;
    for (int i = 0; i < count; i++) {
        const float value = values[i] + 0.0f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        sum = (sum ^ bits) * 1099511628211u;
    }
    return sum;
}

#endif

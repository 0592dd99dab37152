/* Device and pinned memory of the emulator: every allocation is between guard
 * pages, starts as NaN, and is named in the report of an access out of bounds.
 * Addresses are not reused, so a freed one stays recognisable. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu.h"

typedef struct allocation {
    struct allocation *next;
    char *base; /* of the mapping, guards included */
    size_t mapped;
    char *start;
    size_t bytes;
    bool pinned; /* host memory; otherwise the device's */
    int64_t number;
    bool freed;
} allocation;

enum { ALIGNMENT = 256, GUARD = 1 << 16, TOMBSTONES = 4096 };

static allocation *allocations;
static int tombstones;
static int64_t made;
static bool opened;
static const char *accessor_name = "the host";
static char handler_stack[1 << 16];

/* Valid until the next call. */
static const char *name_of(const allocation *which) {
    static char text[96];
    snprintf(text, sizeof text, "%sallocation %ld of %zu bytes",
             which->pinned ? "pinned " : "", which->number, which->bytes);
    return text;
}

/* The allocation whose mapping, including guards, contains the address. */
static allocation *around(const void *address) {
    for (allocation *a = allocations; a != NULL; a = a->next)
        if ((const char *)address >= a->base &&
            (const char *)address < a->base + a->mapped)
            return a;
    return NULL;
}

/* The live allocation that contains the address, or ends at it. */
static const allocation *holder(const void *address) {
    const allocation *a = around(address);
    const char *at = address;
    return a != NULL && !a->freed && at >= a->start && at <= a->start + a->bytes
               ? a
               : NULL;
}

bool is_seen(const void *address) {
    return holder(address) != NULL;
}

bool is_device(const void *address) {
    const allocation *a = holder(address);
    return a != NULL && !a->pinned;
}

/* Check that a range that touches an allocation stays in it. Other memory is
 * the host's, and not checked. */
cudaError_t check_range(const void *start, size_t bytes, const char *what) {
    const allocation *a = around(start);
    if (a == NULL || bytes == 0)
        return cudaSuccess;
    if (a->freed)
        return complain(cudaErrorInvalidValue, "%s of %zu bytes in %s, freed",
                        what, bytes, name_of(a));
    const char *at = start;
    if (at < a->start || at + bytes > a->start + a->bytes)
        return complain(cudaErrorInvalidValue,
                        "%s of %zu bytes from byte %ld of %s", what, bytes,
                        (at - a->start), name_of(a));
    return cudaSuccess;
}

/* The host must not access device memory; the scheduler opens it to work. */
static void protect(int rights) {
    for (allocation *a = allocations; a != NULL; a = a->next)
        if (!a->pinned && !a->freed)
            mprotect(a->base + GUARD, a->mapped - 2 * GUARD, rights);
}

void open_memory(const char *accessor) {
    accessor_name = accessor;
    if (!opened && !machine.options.open)
        protect(PROT_READ | PROT_WRITE);
    opened = true;
}

void close_memory(void) {
    accessor_name = "the host";
    if (opened && !machine.options.open)
        protect(PROT_NONE);
    opened = false;
}

/* Describe an address, for the report of a bad access. */
static void describe_address(const char *at, char *text, size_t bytes) {
    const allocation *a = around(at);
    if (a == NULL) {
        snprintf(text, bytes, "address %p, in no allocation", (const void *)at);
        return;
    }
    const char *name = name_of(a), *end = a->start + a->bytes;
    if (at < a->start && !a->freed)
        snprintf(text, bytes, "%ld bytes before %s", (a->start - at), name);
    else if (at >= end && !a->freed)
        snprintf(text, bytes, "%ld bytes past the end of %s", (at - end), name);
    else
        snprintf(text, bytes, "byte %ld of %s, %s", (at - a->start), name,
                 a->freed ? "freed" : "which only the device may touch");
}

static void bad_access(int signal_number, siginfo_t *info, void *context) {
    (void)context;
    char where[192], text[320];
    describe_address(info->si_addr, where, sizeof where);
    const int length = snprintf(text, sizeof text, "emulator: %s touched %s\n",
                                accessor_name, where);
    if (length > 0 && write(STDERR_FILENO, text, (size_t)length) < 0)
        _exit(1);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

void watch_memory(void) {
    const stack_t stack = {.ss_sp = handler_stack,
                           .ss_size = sizeof handler_stack};
    sigaltstack(&stack, NULL);
    struct sigaction action = {.sa_sigaction = bad_access,
                               .sa_flags =
                                   SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}

static size_t rounded(size_t bytes, size_t to) {
    return (bytes + to - 1) / to * to;
}

static cudaError_t allocate(void **out, size_t bytes, bool pinned) {
    *out = NULL;
    if (countdown(&machine.fail_allocation))
        return complain(cudaErrorMemoryAllocation,
                        "allocation of %zu bytes failed on demand", bytes);
    machine.counted.allocations++;
    if (bytes == 0)
        return cudaSuccess;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t inner = rounded(rounded(bytes, ALIGNMENT), page);
    char *base = mmap(NULL, inner + 2 * GUARD, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return complain(cudaErrorMemoryAllocation, "no %zu bytes to map",
                        inner);
    mprotect(base + GUARD, inner, PROT_READ | PROT_WRITE);
    memset(base + GUARD, POISON, inner);
    allocation *a = take(1, sizeof *a);
    *a = (allocation){.base = base,
                      .mapped = inner + 2 * GUARD,
                      .start = base + GUARD + inner - rounded(bytes, ALIGNMENT),
                      .bytes = bytes,
                      .pinned = pinned,
                      .number = ++made};
    enlist(&allocations, a);
    if (!pinned && !opened && !machine.options.open)
        mprotect(base + GUARD, inner, PROT_NONE);
    *out = a->start;
    return cudaSuccess;
}

static size_t bytes_left(void) {
    size_t left = (size_t)machine.options.bytes;
    for (const allocation *a = allocations; a != NULL; a = a->next)
        if (!a->pinned && !a->freed)
            left -= rounded(a->bytes, ALIGNMENT);
    return left;
}

/* The bytes around an allocation must still be poison when it is freed. */
static void check_edges(const allocation *a) {
    const char *first = a->base + GUARD;
    const char *end = a->start + a->bytes;
    const size_t behind = (size_t)(a->base + a->mapped - GUARD - end);
    if (!all_poison(first, (size_t)(a->start - first)))
        accuse("something wrote before %s", name_of(a));
    size_t byte = 0;
    while (byte < behind && (unsigned char)end[byte] == POISON)
        byte++;
    if (byte < behind)
        accuse("something wrote %zu bytes past the end of %s", byte,
               name_of(a));
}

static void forget(allocation *a) {
    unlist(&allocations, a);
    munmap(a->base, a->mapped);
    free(a);
}

/* Return the pages but keep the addresses reserved; only the oldest are
 * released when there are too many. */
static void bury(allocation *a) {
    open_memory("freeing");
    check_edges(a);
    a->freed = true;
    mmap(a->base, a->mapped, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (++tombstones <= TOMBSTONES)
        return;
    allocation *oldest = NULL;
    for (allocation *b = allocations; b != NULL; b = b->next)
        oldest = b->freed ? b : oldest;
    forget(oldest);
    tombstones--;
}

static cudaError_t release(void *start, bool pinned) {
    if (start == NULL)
        return cudaSuccess;
    allocation *a = around(start);
    if (a == NULL || a->start != start || a->pinned != pinned)
        return complain(cudaErrorInvalidValue, "%p was never allocated as %s",
                        start, pinned ? "pinned memory" : "device memory");
    if (a->freed)
        return complain(cudaErrorInvalidValue,
                        "allocation %ld is freed a second time", a->number);
    bury(a);
    return cudaSuccess;
}

/* At the end: report what was never freed, and unmap everything. */
void release_memory(void) {
    open_memory("freeing");
    while (allocations != NULL) {
        if (!allocations->freed) {
            check_edges(allocations);
            accuse("%s was never freed", name_of(allocations));
        }
        forget(allocations);
    }
    tombstones = 0;
    made = 0;
    opened = false;
}

uint64_t fingerprint(const char *start, size_t bytes) {
    uint64_t sum = 0x9E3779B97F4A7C15u ^ bytes, word;
    for (; bytes >= sizeof word; bytes -= sizeof word, start += sizeof word) {
        memcpy(&word, start, sizeof word);
        sum = (sum ^ word) * 0xD6E8FEB86659FD93u;
        sum ^= sum >> 32;
    }
    for (; bytes > 0; bytes--, start++)
        sum = (sum ^ (unsigned char)*start) * 0x100000001B3u;
    return sum;
}

/* Are all bytes poison? */
bool all_poison(const char *start, size_t bytes) {
    return bytes == 0 || ((unsigned char)*start == POISON &&
                          memcmp(start, start + 1, bytes - 1) == 0);
}

static cudaError_t enter_to_allocate(void **out, const char *call) {
    OR_RETURN(enter());
    return out != NULL ? refuse_in_capture(call) : cudaErrorInvalidValue;
}

cudaError_t cudaMalloc(void **devPtr, size_t size) {
    TRY(enter_to_allocate(devPtr, "cudaMalloc"));
    const size_t left = bytes_left();
    if (size > left || rounded(size, ALIGNMENT) > left)
        return leave(complain(cudaErrorMemoryAllocation,
                              "allocation of %zu bytes on a device that has "
                              "%zu of %ld left",
                              size, left, machine.options.bytes));
    return leave(allocate(devPtr, size, false));
}

cudaError_t cudaMallocHost(void **ptr, size_t size) {
    TRY(enter_to_allocate(ptr, "cudaMallocHost"));
    return leave(allocate(ptr, size, true));
}

/* Freeing waits for the device, as CUDA does, and frees even if that failed. */
static cudaError_t free_after_all(void *memory, bool pinned) {
    cudaError_t error = enter();
    if (error == cudaSuccess && !pinned)
        TRY(refuse_in_capture("cudaFree"));
    if (error == cudaSuccess && memory != NULL)
        error = await((waiting){0});
    const cudaError_t freed =
        machine.begun ? release(memory, pinned) : cudaSuccess;
    return leave(error != cudaSuccess ? error : freed);
}

cudaError_t cudaFree(void *devPtr) {
    return free_after_all(devPtr, false);
}

cudaError_t cudaFreeHost(void *ptr) {
    return free_after_all(ptr, true);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    TRY(enter());
    *free_bytes = bytes_left();
    *total = (size_t)machine.options.bytes;
    return leave(cudaSuccess);
}

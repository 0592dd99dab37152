/* A call that `longring plan` has planned and proved, as a page. */
#ifndef CP_PLAN_PAGE_H
#define CP_PLAN_PAGE_H

#include <stdio.h>

#include "app/options_call.h"
#include "plan/check.h"
#include "tokens/cache.h"

typedef struct {
    int64_t ranks, element_bytes;
    cp_command_tokens tokens;
    cp_counts heads;
    cp_variant variant;
    int scan;         /* 1 + a cp_scan; 0: attention */
    cp_counts states; /* heads, dimensions of keys and of values */
    int64_t state[3];
    int64_t move; /* number of ranks that the cache then moves to; -1: stays */
    cp_command_placement placement;
    cp_command_sparse sparse;
    cp_wire wire;
    int64_t value_dim; /* values of a latent; 0: no latent */
    int64_t window;    /* that a query sees; 0: all keys */
    int draw;          /* 0: nothing */
    int64_t buffers;   /* for ring blocks: the current one, and spares */
    const char *drop;  /* "RANK:NUMBER", or NULL */
    bool check, csv;
    const char *out;
    /* Derived from the options. */
    cp_shape shape;
    cp_choice choice;
    cp_cache *cache, *moved;
    cp_migration *migration;
    cp_layout *layout;
    cp_plan *plan;
    cp_plan_report report;
    char *page;
} cp_plan_run;

/* Write the page that the options ask for: tables, rows for programs, or a
 * drawing. Fails as what draws or explores does, and with CP_MEMORY. */
cp_status cp_plan_page(void *run, FILE *out);

#endif

/* Tangled from book/17-elastic.nw; edit the chapter. */
/* Moving a cache to more ranks or fewer: where each token is, and where it
 * belongs. */
#ifndef CP_MIGRATE_H
#define CP_MIGRATE_H

#include "tokens/layout.h"

/* The row of a rank's cache in which a token lies. */
typedef struct {
    int rank;
    int64_t row;
} cp_location;

/* A transfer from one rank to another, or to itself: rows of the sender's old
 * cache that become rows of the receiver's new one, in this order. */
typedef struct {
    cp_moves moves;
    int64_t rows;
    int index; /* its index among the transfers that are not empty */
} cp_transfer;

typedef struct cp_migration {
    int ranks; /* the larger of both numbers: some ranks have no old cache, or
                  no new one */
    int64_t sequences, tokens;
    int64_t *first;            /* [sequences + 1] each one's first token */
    cp_pieces *before, *after; /* [ranks] tokens and their rows in the caches */
    cp_transfer *transfers;    /* [ranks][ranks] from, to */
    int count;                 /* transfers that are not empty */
    int64_t moved;             /* tokens that leave their rank */
    cp_layout *layout;         /* of these ranks and tokens, for the plan */
} cp_migration;

/* A migration of sequences of these lengths. The caller fills its lists before
 * and after. Fails as cp_layout_new does, also if there is no token. */
cp_status cp_migration_new(int ranks, int64_t sequences, const int64_t *lengths,
                           cp_migration **out);
void cp_migration_free(cp_migration *migration);

/* Where every token lies, according to these lists: locations [tokens], in the
 * order of sequences and positions. Fails with CP_BROKEN, naming the token, if
 * it is in no list or in two. */
cp_status cp_migration_locations(const cp_migration *migration,
                                 const cp_pieces *lists,
                                 cp_location *locations);

/* Fill the transfers. Fails as the function above does, and with CP_MEMORY. */
cp_status cp_migration_match(cp_migration *migration);
cp_transfer *cp_transfer_of(const cp_migration *migration, int from, int to);

/* Prove that the transfers bring each token from where it was to where it
 * belongs, once. cp_plan_check calls this. Fails with CP_BROKEN, naming the
 * token. */
cp_status cp_migration_check(const cp_migration *migration);

#endif

/* Tangled from book/17-elastic.nw; edit the chapter. */
/* Moving a cache to more ranks or fewer: where each token is, where it is due,
 * and a plan that brings it there. */
#ifndef CP_MIGRATE_H
#define CP_MIGRATE_H

#include "ring/plan.h"

/* In which row of a rank's cache a token lies. */
typedef struct {
    int rank;
    int64_t row;
} cp_spot;

/* What one rank gives to another, or keeps: rows of its old cache that become
 * rows of the other's new one, in this order. */
typedef struct {
    cp_moves moves;
    int64_t rows;
    int place; /* among those that are not empty */
} cp_parcel;

typedef struct cp_migration {
    int ranks; /* the larger of both numbers: some have no old cache, or no new
                  one */
    int64_t sequences, tokens;
    int64_t *first;            /* [sequences + 1] of each, among all tokens */
    cp_pieces *before, *after; /* [ranks] tokens, and the rows of the caches */
    cp_parcel *parcels;        /* [ranks][ranks] from, to */
    int count;                 /* of those that are not empty */
    int64_t moved;             /* tokens that leave their rank */
    cp_layout *layout;         /* of so many ranks and tokens, for the plan */
} cp_migration;

/* A migration of sequences of these lengths, whose lists before and after are
 * for the caller to fill. Fails as cp_layout_new does, without a token
 * too. */
cp_status cp_migration_new(int ranks, int64_t sequences, const int64_t *lengths,
                           cp_migration **out);
void cp_migration_free(cp_migration *migration);

/* Where every token lies, by these lists: spots [tokens], in the order of
 * sequences and positions. Fails with CP_BROKEN, naming the token, if it is in
 * no list or in two. */
cp_status cp_migration_spots(const cp_migration *migration,
                             const cp_pieces *lists, cp_spot *spots);

/* Fill the parcels. Fails as spots does, and with CP_MEMORY. */
cp_status cp_migration_match(cp_migration *migration);
cp_parcel *cp_parcel_of(const cp_migration *migration, int from, int to);

/* Prove that by the parcels each token goes from where it was to where it is
 * due, once. cp_plan_check calls this. Fails with CP_BROKEN, naming it. */
cp_status cp_migration_check(const cp_migration *migration);

/* The plan of one layer: an all-to-all of parcels. The migration must outlive
 * it. A walker of it has the old cache where cp_walk gets one, and the new one
 * where new_keys and new_values say. Fails as cp_plan_new does. */
cp_status cp_migration_plan(const cp_migration *migration,
                            const cp_shape *shape, int64_t element_bytes,
                            cp_plan **out);

#endif

/* Tangled from book/17-elastic.nw; edit the chapter. */
/* The plan that moves a cache to more ranks or fewer. */
#ifndef CP_MOVE_H
#define CP_MOVE_H

#include "plan/plan.h"
#include "tokens/migrate.h"

/* The plan of one layer: an all-to-all of transfers. The migration must outlive
 * it. A walker takes the old cache as cp_walk's cache, and the new one as its
 * new_keys and new_values. Fails as cp_plan_new does. */
cp_status cp_migration_plan(const cp_migration *migration,
                            const cp_shape *shape, int64_t element_bytes,
                            cp_plan **out);

#endif

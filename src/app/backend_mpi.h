/* The backend whose ranks are processes; in the table if MPI is built in. */
#ifndef CP_BACKEND_MPI_H
#define CP_BACKEND_MPI_H

#include "model/backend.h"

extern const cp_backend cp_backend_mpi;

#endif

/* The linked model for Swift, which imports neither arrays without a size nor a variable with the name of its type. */
#ifndef LINKED_H
#define LINKED_H

#include "msedge.h"

static inline enum msedge_status linked_size(size_t *needed) {
  return msedge_size(&msedge_kernels, msedge_model, (size_t)(msedge_model_end - msedge_model), needed);
}

static inline enum msedge_status linked_open(struct msedge *model, void *memory, size_t bytes) {
  size_t flat = (size_t)(msedge_model_end - msedge_model);
  return msedge_open(model, &msedge_kernels, msedge_model, flat, memory, bytes);
}

#endif

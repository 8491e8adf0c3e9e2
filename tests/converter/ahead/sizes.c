/* sizes FLAT: changes one word of a flat file after the other, as lines "PLACE VALUE" on stdin say, and prints for each the
   status and the bytes of memory that the file needs. Compiled without the digest, so that changes reach the checks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "msedge.h"

enum { MOST = 1 << 20 }; /* bytes of models that are opened */

static void *aligned(size_t bytes) {
  char *memory = malloc(bytes + MSEDGE_ALIGN);
  if (!memory) exit(3);
  return memory + (MSEDGE_ALIGN - (uintptr_t)memory % MSEDGE_ALIGN) % MSEDGE_ALIGN;
}

int main(int count, char **arguments) {
  FILE *file = count == 2 ? fopen(arguments[1], "rb") : NULL;
  if (!file || fseek(file, 0, SEEK_END)) return 2;
  size_t bytes = (size_t)ftell(file), needed;
  uint8_t *flat = aligned(bytes);
  rewind(file);
  if (fread(flat, 1, bytes, file) != bytes) return 2;
  /* As the file says: its target, and the number and digest of its kernels, none of which is run. */
  uint32_t texts, target, kernels;
  memcpy(&texts, flat + 64, 4), memcpy(&target, flat + 28, 4), memcpy(&kernels, flat + 64 + 2 * 8 + 4, 4);
  struct msedge_kernels *own = calloc(1, sizeof *own);
  if (!own) return 3;
  own->count = kernels;
  strncpy(own->target, (const char *)flat + texts + target, sizeof own->target);
  memcpy(own->digest, flat + 32, sizeof own->digest);
  void *memory = aligned(MOST);
  unsigned long place, value;
  while (scanf("%lu %lu", &place, &value) == 2) {
    uint32_t now, then = (uint32_t)value;
    memcpy(&now, flat + place, 4);
    memcpy(flat + place, &then, 4);
    enum msedge_status status = msedge_size(own, flat, bytes, &needed);
    struct msedge model;
    if (!status && needed <= MOST) status = msedge_open(&model, own, flat, bytes, memory, needed);
    memcpy(flat + place, &now, 4);
    printf("%d %llu\n", (int)status, (unsigned long long)needed);
  }
  return 0;
}

/* mutate FLAT COUNT SEED: changes words of a flat file at random, a few at a time, and opens, runs and reads what is not
   refused, with kernels that do nothing. Compiled without the digest, so that changes reach the checks. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "msedge.h"

static uint64_t state;

static uint32_t random_word(void) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (uint32_t)(state >> 16);
}

static void nothing(const int64_t *step, const int64_t *bases, int64_t worker, int64_t workers) {
  (void)step, (void)bases, (void)worker, (void)workers;
}

/* All that a program may read. */
static uint32_t sum(const struct msedge_port *port, int sampled) {
  uint32_t found = (uint32_t)strlen(port->name);
  for (uint32_t i = 0; i < port->rank; i++) found += port->shape[i];
  for (size_t i = 0; i < port->bytes; i++) found += ((const uint8_t *)port->data)[i];
  for (size_t i = 0; sampled && port->sample && i < port->bytes; i++) found += ((const uint8_t *)port->sample)[i];
  return found;
}

static uint32_t use(struct msedge *model) {
  uint32_t found = (uint32_t)(strlen(model->made_by) + strlen(model->bundle));
  for (uint32_t i = 0; i < model->state_count; i++) found += sum(&model->states[i], 1);
  for (uint32_t i = 0; i < model->signature_count; i++) {
    const struct msedge_signature *signature = &model->signatures[i];
    for (uint32_t j = 0; j < signature->input_count; j++) {
      found += sum(&signature->inputs[j], 1);
      memset(signature->inputs[j].data, 1, signature->inputs[j].bytes);
    }
    enum msedge_status status = msedge_run(model, i);
    if (status) abort();
    model->fault = 256 * (int64_t)(random_word() % 64) + 1; /* as if a kernel had found an index outside */
    if (msedge_run(model, i) != MSEDGE_INDEX) abort();
    found += (uint32_t)strlen(model->where);
    for (uint32_t j = 0; j < signature->output_count; j++) found += sum(&signature->outputs[j], 1);
  }
  return found;
}

int main(int count, char **arguments) {
  static uint8_t whole[1 << 20];
  FILE *file = fopen(arguments[1], "rb");
  if (count != 4 || !file) return 2;
  size_t bytes = fread(whole, 1, sizeof whole, file);
  fclose(file);
  state = strtoull(arguments[3], NULL, 10) * 2654435761u + 88172645463325252u;
  struct msedge_kernels *kernels = calloc(1, sizeof *kernels + 64 * sizeof(msedge_kernel));
  uint32_t text, texts;
  memcpy(&texts, whole + 64, 4);
  memcpy(&text, whole + 28, 4);
  strncpy(kernels->target, (const char *)whole + texts + text, sizeof kernels->target - 1);
  memcpy(kernels->digest, whole + 32, 32);
  memcpy(&kernels->count, whole + 64 + 8 * 2 + 4, 4);
  for (uint32_t i = 0; i < kernels->count; i++) kernels->table[i] = nothing;
  long opened = 0, refused[32] = {0}, most = strtol(arguments[2], NULL, 10);
  uint32_t found = 0;
  static const uint32_t VALUES[] = {0, 1, 2, 3, 4, 8, 64, 192, 0x7fffffff, 0x80000000, 0xfffffff0, 0xffffffff};
  for (long i = 0; i < most; i++) {
    /* Memory of its own, exactly as large, so that a sanitizer finds every byte read outside. */
    size_t size = random_word() % 64 ? bytes : random_word() % (bytes + 1);
    void *memory, *copy;
    if (posix_memalign(&copy, 64, size)) return 2;
    uint8_t *flat = copy;
    memcpy(flat, whole, size);
    for (uint32_t j = 0; size >= 16 && j < 1 + random_word() % 3; j++) {
      uint32_t tables = size > texts && random_word() % 4 ? texts : 12, now;
      size_t at = tables + (random_word() % (size - tables) & ~3u), kind = random_word() % 4;
      if (at + 4 > size) continue;
      memcpy(&now, flat + at, 4);
      uint32_t value = kind == 0 ? VALUES[random_word() % 12] : kind == 1 ? now + random_word() % 9 - 4
                     : kind == 2 ? now ^ 1u << random_word() % 32 : random_word();
      memcpy(flat + at, &value, 4);
    }
    if (size >= 16 && size != bytes) memcpy(flat + 12, &(uint32_t){(uint32_t)size}, 4);
    size_t needed;
    enum msedge_status status = msedge_size(kernels, flat, size, &needed);
    refused[status]++;
    if (status == MSEDGE_OK && needed < 1 << 22) {
      struct msedge model;
      if (posix_memalign(&memory, 64, needed)) return 2;
      memset(memory, 0xa5, needed);
      if (msedge_open(&model, kernels, flat, size, memory, needed)) abort();
      found += use(&model);
      opened++;
      free(memory);
    }
    free(flat);
  }
  for (int i = 0; i < 32; i++) printf("%ld ", refused[i]);
  printf("%ld %u\n", opened, found);
  free(kernels);
  return 0;
}

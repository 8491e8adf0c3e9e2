/* Runs a model that `msedge build --target x86-64-v3` (or another) made as a C library, on raw bytes.

       run [-s SIGNATURE] [-o RESULTS] [-k STATE] MODEL.msflat [INPUT...]

   First the sample of every signature is run and compared. Then SIGNATURE (by default the first) runs once for each
   value in the INPUT files, one file for each input, in the order of the README: a file of 100 images gives 100 runs.
   RESULTS gets all outputs of all runs as raw bytes; STATE is read if it is there, and written at the end, so that a
   device that trains goes on where it stopped. */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "msedge.h"

static void stop(const char *format, ...) {
  va_list rest;
  va_start(rest, format);
  vfprintf(stderr, format, rest);
  va_end(rest);
  fputc('\n', stderr);
  exit(1);
}

struct bytes {
  const uint8_t *at;
  size_t count;
};

static struct bytes mapped(const char *path) {
  struct stat facts;
  int file = open(path, O_RDONLY);
  if (file < 0 || fstat(file, &facts)) stop("%s cannot be read", path);
  struct bytes found = {(const uint8_t *)"", (size_t)facts.st_size};
  if (found.count) found.at = mmap(NULL, found.count, PROT_READ, MAP_PRIVATE, file, 0);
  if (found.at == MAP_FAILED) stop("%s cannot be mapped", path);
  close(file);
  return found;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static struct msedge open_model(struct bytes flat) {
  struct msedge model;
  size_t needed;
  enum msedge_status status = msedge_size(&msedge_kernels, flat.at, flat.count, &needed);
  if (status) stop("status %d: %s", status, msedge_text(status));
  static void *memory;
  if (posix_memalign(&memory, MSEDGE_ALIGN, needed)) stop("no %zu bytes of memory", needed);
  status = msedge_open(&model, &msedge_kernels, flat.at, flat.count, memory, needed);
  if (status) stop("status %d: %s", status, msedge_text(status));
  printf("made by %s for %s; %zu bytes of memory\n", model.made_by, msedge_kernels.target, needed);
  return model;
}

static void test(struct msedge *model) {
  for (uint32_t i = 0; i < model->signature_count; i++) {
    enum msedge_status status = msedge_test(model, i);
    if (status) stop("%s: status %d: %s: %s", model->signatures[i].name, status, msedge_text(status), model->where);
    printf("%s: as the sample\n", model->signatures[i].name);
  }
}

static void load_state(struct msedge *model, const char *path) {
  if (access(path, F_OK)) return; /* the first time */
  struct bytes kept = mapped(path);
  size_t at = 0, all = 0;
  for (uint32_t i = 0; i < model->state_count; i++) all += model->states[i].bytes;
  if (kept.count != all) stop("%s: expected a state of %zu bytes, got %zu", path, all, kept.count);
  for (uint32_t i = 0; i < model->state_count; at += model->states[i++].bytes) {
    memcpy(model->states[i].data, kept.at + at, model->states[i].bytes);
  }
}

/* Whole or not at all: a new file takes the old one's place. */
static void save_state(const struct msedge *model, const char *path) {
  char other[4096];
  if ((size_t)snprintf(other, sizeof other, "%s.new", path) >= sizeof other) stop("%s: too long a path", path);
  FILE *file = fopen(other, "wb");
  if (!file) stop("%s cannot be written", other);
  for (uint32_t i = 0; i < model->state_count; i++) fwrite(model->states[i].data, 1, model->states[i].bytes, file);
  if (fflush(file) || fsync(fileno(file)) || fclose(file) || rename(other, path)) stop("%s cannot be written", path);
}

static double value(const struct msedge_port *port, size_t i) {
  switch (port->dtype) {
    case MSEDGE_BOOL: case MSEDGE_UINT8: return ((const uint8_t *)port->data)[i];
    case MSEDGE_INT8: return ((const int8_t *)port->data)[i];
    case MSEDGE_INT16: return ((const int16_t *)port->data)[i];
    case MSEDGE_UINT16: case MSEDGE_FLOAT16: return ((const uint16_t *)port->data)[i]; /* float16: its bits */
    case MSEDGE_INT32: return ((const int32_t *)port->data)[i];
    case MSEDGE_UINT32: return ((const uint32_t *)port->data)[i];
    case MSEDGE_INT64: return (double)((const int64_t *)port->data)[i];
    case MSEDGE_UINT64: return (double)((const uint64_t *)port->data)[i];
    case MSEDGE_FLOAT32: return ((const float *)port->data)[i];
    case MSEDGE_FLOAT64: return ((const double *)port->data)[i];
  }
  return 0;
}

static void show(const struct msedge_port *port) {
  size_t best = 0;
  for (size_t i = 1; i < port->elements; i++) best = value(port, i) > value(port, best) ? i : best;
  if (port->elements == 1) printf("  %s: %.9g\n", port->name, value(port, 0));
  else if (port->elements) printf("  %s: largest at %zu of %zu, %.9g\n", port->name, best, port->elements, value(port, best));
}

static uint32_t number_of(const struct msedge *model, const char *name) {
  for (uint32_t i = 0; name && i < model->signature_count; i++) {
    if (!strcmp(model->signatures[i].name, name)) return i;
  }
  if (name) stop("no signature %s", name);
  return 0;
}

/* Runs a signature once for each value in the files; returns the number of runs. */
static size_t run_all(struct msedge *model, uint32_t number, char **paths, FILE *results, double *seconds) {
  const struct msedge_signature *signature = &model->signatures[number];
  struct bytes given[64];
  size_t runs = 0;
  if (signature->input_count > 64) stop("expected 64 inputs or fewer");
  for (uint32_t i = 0; i < signature->input_count; i++) {
    const struct msedge_port *port = &signature->inputs[i];
    given[i] = mapped(paths[i]);
    size_t many = port->bytes ? given[i].count / port->bytes : 1;
    if (given[i].count != many * port->bytes || (i && many != runs)) {
      stop("%s: expected values of %zu bytes each, as many as for the other inputs, got %zu bytes", paths[i],
           port->bytes, given[i].count);
    }
    runs = many;
  }
  for (size_t run = 0; run < runs; run++) {
    for (uint32_t i = 0; i < signature->input_count; i++) {
      size_t bytes = signature->inputs[i].bytes;
      memcpy(signature->inputs[i].data, given[i].at + run * bytes, bytes);
    }
    double start = now();
    enum msedge_status status = msedge_run(model, number);
    *seconds += now() - start;
    if (status) stop("run %zu: status %d: %s: %s", run, status, msedge_text(status), model->where);
    for (uint32_t i = 0; i < signature->output_count; i++) {
      const struct msedge_port *port = &signature->outputs[i];
      show(port);
      if (results && fwrite(port->data, 1, port->bytes, results) != port->bytes) stop("results cannot be written");
    }
  }
  return runs;
}

int main(int count, char **arguments) {
  const char *signature = NULL, *output = NULL, *state = NULL;
  int option;
  while ((option = getopt(count, arguments, "s:o:k:")) != -1) {
    if (option == 's') signature = optarg;
    else if (option == 'o') output = optarg;
    else if (option == 'k') state = optarg;
    else return 2;
  }
  if (optind >= count) stop("expected: %s [-s SIGNATURE] [-o RESULTS] [-k STATE] MODEL.msflat [INPUT...]", arguments[0]);
  struct msedge model = open_model(mapped(arguments[optind++]));
  test(&model);
  if (state) load_state(&model, state);
  uint32_t number = number_of(&model, signature);
  if (optind == count) return 0;
  if (count - optind != (int)model.signatures[number].input_count) {
    stop("expected %" PRIu32 " inputs of %s, got %d files", model.signatures[number].input_count,
         model.signatures[number].name, count - optind);
  }
  FILE *results = output ? fopen(output, "wb") : NULL;
  if (output && !results) stop("%s cannot be written", output);
  double seconds = 0;
  size_t runs = run_all(&model, number, arguments + optind, results, &seconds);
  if (results && fclose(results)) stop("%s cannot be written", output);
  if (state) save_state(&model, state);
  printf("%zu runs, %.3f ms each\n", runs, runs ? 1e3 * seconds / (double)runs : 0.0);
  return 0;
}

/* Runs models that `msedge build` made: a .msflat file (programs, constants, state) by compiled kernels.

       struct msedge model;
       size_t bytes;
       enum msedge_status status = msedge_size(&msedge_kernels, flat, flat_bytes, &bytes);
       ... memory of so many bytes ...
       status = msedge_open(&model, &msedge_kernels, flat, flat_bytes, memory, bytes);
       ... fill model.signatures[0].inputs[0].data ...
       status = msedge_run(&model, 0);
       ... read model.signatures[0].outputs[0].data ...

   Nothing is allocated, and no library is needed but memcpy, memmove and memset, which compilers call by themselves. A
   file may be untrusted: everything in it is checked before it is used, and for every operand of every step that it
   lies in its buffer. Not checked is whether a step's numbers fit its operands; a digest that is known from elsewhere
   shows who made a file. A model is used by one thread at a time. C99, for little-endian processors of 32 or 64 bits. */
#ifndef MSEDGE_H
#define MSEDGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The file and the memory begin at a multiple of this; buffers do so as well. At most 64, and at least 8; smaller numbers
   save memory on processors without wide vectors, and are the default for Cortex-M. The same for all files of a
   program. */
#if !defined MSEDGE_ALIGN && defined __ARM_ARCH_PROFILE && __ARM_ARCH_PROFILE == 'M'
#define MSEDGE_ALIGN 8
#elif !defined MSEDGE_ALIGN
#define MSEDGE_ALIGN 64
#endif
#if MSEDGE_ALIGN < 8 || MSEDGE_ALIGN > 64 || (MSEDGE_ALIGN & (MSEDGE_ALIGN - 1))
#error "MSEDGE_ALIGN: expected 8, 16, 32 or 64"
#endif

enum msedge_status {
  MSEDGE_OK,
  MSEDGE_MISALIGNED, /* the file or the memory */
  MSEDGE_NOT_FLAT,
  MSEDGE_VERSION,
  MSEDGE_LENGTH,
  MSEDGE_DIGEST,
  MSEDGE_TARGET,
  MSEDGE_KERNELS,
  MSEDGE_TABLES,
  MSEDGE_TEXTS,
  MSEDGE_TENSORS,
  MSEDGE_BLOCKS,
  MSEDGE_SIGNATURES,
  MSEDGE_PORTS,
  MSEDGE_PROGRAM,
  MSEDGE_MEMORY,
  MSEDGE_NO_SIGNATURE,
  MSEDGE_INDEX,
  MSEDGE_DIFFERS
};

enum msedge_dtype {
  MSEDGE_BOOL, /* bytes of 0 and 1 */
  MSEDGE_INT8,
  MSEDGE_UINT8,
  MSEDGE_INT16,
  MSEDGE_UINT16,
  MSEDGE_INT32,
  MSEDGE_UINT32,
  MSEDGE_INT64,
  MSEDGE_UINT64,
  MSEDGE_FLOAT16,
  MSEDGE_FLOAT32,
  MSEDGE_FLOAT64
};

typedef void (*msedge_kernel)(const int64_t *step, const int64_t *bases, int64_t worker, int64_t workers);

/* What an object file of kernels defines; kernels.o of a folder defines `msedge_kernels`. (C++ has no such arrays.) */
struct msedge_kernels;
#ifndef __cplusplus
struct msedge_kernels {
  uint32_t count;
  char target[28];
  uint8_t digest[32];
  msedge_kernel table[];
};
#endif
extern const struct msedge_kernels msedge_kernels;

/* model.msflat as a part of the program (model.S). */
extern const uint8_t msedge_model[];
extern const uint8_t msedge_model_end[];

/* An input, an output or a state: `elements` numbers in row-major order. Outputs are valid until the next run, and
   inputs too: signatures share their memory. States stay; data may be written to change one. */
struct msedge_port {
  const char *name;
  void *data;
  const void *sample; /* values of the sample in the file, or NULL: an output without; states: the initial value */
  const uint32_t *shape;
  uint32_t rank;
  enum msedge_dtype dtype;
  size_t elements;
  size_t bytes;
};

struct msedge_signature {
  const char *name;
  struct msedge_port *inputs;
  struct msedge_port *outputs;
  uint32_t input_count;
  uint32_t output_count;
  uint32_t sample_runs; /* of the sample, from the initial state, of which the last gives its outputs */
  float tolerance;      /* share of an output's largest magnitude by which floats may differ from the sample */
  const uint8_t *row;   /* the reader's own */
};

struct msedge {
  struct msedge_signature *signatures;
  struct msedge_port *states;
  uint32_t signature_count;
  uint32_t state_count;
  const char *made_by; /* the version of msedge */
  const char *bundle;  /* the digest of the bundle, in hex */
  const char *where;   /* after MSEDGE_INDEX: the operator whose index is outside its tensor */
  /* The reader's own. */
  const uint8_t *flat;
  const struct msedge_kernels *kernels;
  int64_t *bases;
  uint8_t *buffers;
  int64_t fault;
};

/* Checks a file of `bytes` bytes and gives the bytes of memory that `msedge_open` needs. */
enum msedge_status msedge_size(const struct msedge_kernels *kernels, const void *flat, size_t bytes, size_t *needed);

/* Checks a file and makes a model of it, with its state as in the file. File and memory belong to the model from then on;
   constants are read in the file. Nothing of `memory` is used before everything has been checked. */
enum msedge_status msedge_open(struct msedge *model, const struct msedge_kernels *kernels, const void *flat,
                               size_t bytes, void *memory, size_t memory_bytes);

/* Runs a signature, by its number. If it succeeds, the values that it gives for states become the state. */
enum msedge_status msedge_run(struct msedge *model, uint32_t signature);

/* Returns all state to its values in the file. */
void msedge_reset(struct msedge *model);

/* Runs a signature's sample from the initial state, to which it returns at the end: integers must be equal, floats as
   near as `tolerance` says. Otherwise MSEDGE_DIFFERS; `where` is then the output's name. (msedge_test.c) */
enum msedge_status msedge_test(struct msedge *model, uint32_t signature);

/* What a status means, and what to do. */
const char *msedge_text(enum msedge_status status);

#ifdef __cplusplus
}
#endif

#endif

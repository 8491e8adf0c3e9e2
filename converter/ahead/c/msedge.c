/* Reads flat files of version 2, whose format is described in msedge's converter/ahead/flat.py: checks, memory, runs.

   MSEDGE_NO_DIGEST leaves out the check of the file's SHA-256, where the file is part of the program: the default for
   Cortex-M, without MSEDGE_CHECK_DIGEST. */
#include "msedge.h"

#if defined __ARM_ARCH_PROFILE && __ARM_ARCH_PROFILE == 'M' && !defined MSEDGE_CHECK_DIGEST && \
    !defined MSEDGE_NO_DIGEST
#define MSEDGE_NO_DIGEST
#endif
#if defined __BYTE_ORDER__ && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "flat files are read in place, which needs a little-endian processor"
#endif

enum { VERSION = 2, HEADER = 192, DIGEST = 32, BLOCK = 64, DIRECTORY = 64, FIRST_FREE = 3 };
enum { FAULT = 1, ARENA = 2 };                 /* bases; 0 is nothing */
enum { LENGTH = 1, FLAGS = 2, HEAD = 3, JUMP = 4 }; /* words of a record; a flag */
enum { READ = 0, SCRATCH = 3, NO_BYTES = -1 }; /* roles of operands */
enum { MOST_SIGNATURES = 64, MOST_PORTS = 4096, MOST_RUNS = 2 };
enum { TEXTS, SIZES, KERNELS, CONSTANTS, STATES, BUFFERS, PORTS, NODES, SIGNATURES, TABLES };
enum { NAME, DTYPE, RANK, SIZE, STATE_BLOCK, PORT_BASE = 4, PORT_OFFSET, PORT_STATE, PORT_SAMPLE };
enum {
  RUNS = 1, TOLERANCE, STEPS, PROGRAM, WORDS, OPERANDS, OPERAND_WORDS, NODE, NODE_COUNT, BUFFER, BUFFER_COUNT, PORT,
  INPUT_COUNT, OUTPUT_COUNT
};

static const uint8_t ROW[TABLES] = {1, 4, 4, 8, 20, 8, 32, 4, 60};     /* bytes of a row */
static const uint8_t WIDTH[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 4, 8}; /* bytes of an element by dtype */
static const uint64_t MOST_ELEMENTS = (uint64_t)1 << 32;

static uint32_t load32(const uint8_t *at) {
  return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static int64_t load64(const uint8_t *at) {
  return (int64_t)(load32(at) | (uint64_t)load32(at + 4) << 32);
}

static void copy(void *to, const void *from, size_t bytes) {
  uint8_t *out = to;
  const uint8_t *in = from;
  for (size_t i = 0; i < bytes; i++) out[i] = in[i];
}

static int same(const void *a, const void *b, size_t bytes) {
  const uint8_t *x = a, *y = b;
  uint8_t differing = 0;
  for (size_t i = 0; i < bytes; i++) differing |= (uint8_t)(x[i] ^ y[i]);
  return differing == 0;
}

/* -- SHA-256 (FIPS 180-4) ----------------------------------------------------------------------------------------- */

#ifndef MSEDGE_NO_DIGEST
static const uint32_t ROUND[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98,
    0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
    0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
    0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2};

static uint32_t turned(uint32_t word, int by) {
  return word >> by | word << (32 - by);
}

static uint32_t big_endian(const uint8_t *at) {
  return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void hash_block(uint32_t hash[8], const uint8_t *block) {
  uint32_t w[16], v[8];
  for (int i = 0; i < 16; i++) w[i] = big_endian(block + 4 * i);
  copy(v, hash, sizeof v);
  for (int i = 0; i < 64; i++) {
    uint32_t early = w[(i + 1) % 16], late = w[(i + 14) % 16], now = w[i % 16];
    uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]), most = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
    uint32_t one = v[7] + (turned(v[4], 6) ^ turned(v[4], 11) ^ turned(v[4], 25)) + choice + ROUND[i] + now;
    uint32_t two = (turned(v[0], 2) ^ turned(v[0], 13) ^ turned(v[0], 22)) + most;
    for (int j = 7; j > 0; j--) v[j] = v[j - 1];
    v[4] += one;
    v[0] = one + two;
    w[i % 16] = now + (turned(early, 7) ^ turned(early, 18) ^ early >> 3) + w[(i + 9) % 16] +
                (turned(late, 17) ^ turned(late, 19) ^ late >> 10);
  }
  for (int i = 0; i < 8; i++) hash[i] += v[i];
}

static int has_digest(const uint8_t *content, size_t bytes, const uint8_t *digest) {
  uint32_t hash[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint8_t last[128] = {0};
  size_t whole = bytes / 64 * 64, rest = bytes - whole, end = rest < 56 ? 64 : 128;
  for (size_t at = 0; at < whole; at += 64) hash_block(hash, content + at);
  copy(last, content + whole, rest);
  last[rest] = 0x80;
  for (size_t i = 0; i < 8; i++) last[end - 1 - i] = (uint8_t)((uint64_t)bytes * 8 >> 8 * i);
  for (size_t at = 0; at < end; at += 64) hash_block(hash, last + at);
  for (size_t i = 0; i < 8; i++) {
    if (hash[i] != big_endian(digest + 4 * i)) return 0;
  }
  return 1;
}
#endif

/* -- the file ------------------------------------------------------------------------------------------------------ */

/* A file whose header and tables are within it. */
struct file {
  const uint8_t *flat;
  uint32_t end; /* where the digest begins */
  uint32_t at[TABLES];
  uint32_t count[TABLES];
  uint32_t first_state; /* bases */
  uint32_t first_buffer;
};

static const uint8_t *row_of(const struct file *file, int table, uint32_t number) {
  return file->flat + file->at[table] + (size_t)ROW[table] * number;
}

static uint32_t word(const uint8_t *row, int column) {
  return load32(row + 4 * column);
}

static const char *text(const struct file *file, uint32_t offset) {
  return (const char *)(const void *)(file->flat + file->at[TEXTS] + offset);
}

static int is_text(const struct file *file, uint32_t offset) {
  return offset < file->count[TEXTS];
}

static int are_rows(const struct file *file, int table, uint32_t first, uint32_t many) {
  return first <= file->count[table] && many <= file->count[table] - first;
}

static int is_block(const struct file *file, uint32_t at, uint64_t bytes) {
  return at % BLOCK == 0 && at >= HEADER && at <= file->end && bytes <= file->end - at;
}

static int equal_texts(const struct file *file, uint32_t a, uint32_t b) {
  const char *x = text(file, a), *y = text(file, b);
  while (*x && *x == *y) x++, y++;
  return *x == *y;
}

/* Bytes of text in UTF-8 (Unicode 16, table 3-7). */
static int is_utf8(const uint8_t *at, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes;) {
    uint8_t lead = at[i++];
    uint32_t more = lead < 0x80 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
    if (more == 0) continue;
    if (lead < 0xc2 || lead > 0xf4 || more > bytes - i) return 0;
    uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80, high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    for (; more > 0; more--, low = 0x80, high = 0xbf) {
      if (at[i] < low || at[i] > high) return 0;
      i++;
    }
  }
  return 1;
}

static enum msedge_status read_header(struct file *file, const struct msedge_kernels *kernels, const uint8_t *flat,
                                      size_t bytes) {
  file->flat = flat;
  if (((uintptr_t)flat) % MSEDGE_ALIGN) return MSEDGE_MISALIGNED;
  if (bytes < 16) return MSEDGE_LENGTH;
  if (!same(flat, "MSFLAT\r\n", 8)) return MSEDGE_NOT_FLAT;
  if (load32(flat + 8) != VERSION) return MSEDGE_VERSION;
  if (bytes < HEADER + DIGEST || load32(flat + 12) != bytes) return MSEDGE_LENGTH;
  file->end = (uint32_t)(bytes - DIGEST);
#ifndef MSEDGE_NO_DIGEST
  if (!has_digest(flat, file->end, flat + file->end)) return MSEDGE_DIGEST;
#endif
  for (int i = 0; i < TABLES; i++) {
    file->at[i] = load32(flat + DIRECTORY + 8 * i);
    file->count[i] = load32(flat + DIRECTORY + 8 * i + 4);
    if (file->at[i] < HEADER || file->at[i] > file->end || file->at[i] % 4) return MSEDGE_TABLES;
    if (file->count[i] > (file->end - file->at[i]) / ROW[i]) return MSEDGE_TABLES;
  }
  const uint8_t *texts = row_of(file, TEXTS, 0);
  if (!file->count[TEXTS] || texts[file->count[TEXTS] - 1] || !is_utf8(texts, file->count[TEXTS])) return MSEDGE_TEXTS;
  for (int i = 0; i < 3; i++) {
    if (!is_text(file, load32(flat + 20 + 4 * i))) return MSEDGE_TEXTS;
  }
  for (uint32_t i = 0; i < file->count[KERNELS]; i++) {
    if (!is_text(file, word(row_of(file, KERNELS, i), NAME))) return MSEDGE_TEXTS;
  }
  for (uint32_t i = 0; i < file->count[NODES]; i++) {
    if (!is_text(file, word(row_of(file, NODES, i), NAME))) return MSEDGE_TEXTS;
  }
  const char *target = text(file, load32(flat + 28));
  for (size_t i = 0; i < sizeof kernels->target; i++) {
    if (target[i] != kernels->target[i]) return MSEDGE_TARGET;
    if (!target[i]) break;
  }
  if (kernels->count != file->count[KERNELS] || !same(flat + 32, kernels->digest, DIGEST)) return MSEDGE_KERNELS;
  return MSEDGE_OK;
}

/* The bytes of a tensor, whose type and shape are checked. */
static enum msedge_status read_tensor(const struct file *file, const uint8_t *row, uint64_t *elements, uint64_t *bytes) {
  uint32_t rank = word(row, RANK), first = word(row, SIZE), dtype = word(row, DTYPE);
  if (!is_text(file, word(row, NAME))) return MSEDGE_TEXTS;
  if (dtype >= sizeof WIDTH || !are_rows(file, SIZES, first, rank)) return MSEDGE_TENSORS;
  *elements = 1;
  for (uint32_t i = 0; i < rank; i++) {
    if (word(row_of(file, SIZES, first + i), 0) == 0) *elements = 0;
  }
  for (uint32_t i = 0; i < rank && *elements; i++) {
    *elements *= word(row_of(file, SIZES, first + i), 0); /* below 2^64: both factors are at most 2^32 */
    if (*elements > MOST_ELEMENTS) return MSEDGE_TENSORS;
  }
  *bytes = *elements * WIDTH[dtype];
  return MSEDGE_OK;
}

static enum msedge_status check_tables(struct file *file) {
  file->first_state = FIRST_FREE + file->count[CONSTANTS];
  file->first_buffer = file->first_state + file->count[STATES];
  for (uint32_t i = 0; i < file->count[CONSTANTS]; i++) {
    const uint8_t *row = row_of(file, CONSTANTS, i);
    if (!is_block(file, word(row, 0), word(row, 1))) return MSEDGE_BLOCKS;
  }
  if (file->count[STATES] > MOST_PORTS) return MSEDGE_TABLES;
  for (uint32_t i = 0; i < file->count[STATES]; i++) {
    const uint8_t *row = row_of(file, STATES, i);
    uint64_t elements, bytes;
    enum msedge_status status = read_tensor(file, row, &elements, &bytes);
    if (status) return status;
    if (!is_block(file, word(row, STATE_BLOCK), bytes)) return MSEDGE_BLOCKS;
    for (uint32_t j = 0; j < i; j++) {
      if (equal_texts(file, word(row, NAME), word(row_of(file, STATES, j), NAME))) return MSEDGE_TEXTS;
    }
  }
  return MSEDGE_OK;
}

/* -- signatures ---------------------------------------------------------------------------------------------------- */

/* The bytes behind a base of a signature, NO_BYTES if it names none. */
static int64_t bytes_of(const struct file *file, const uint8_t *signature, uint64_t base) {
  if (base == 0) return 0;
  if (base < ARENA) return NO_BYTES;
  if (base == ARENA) return load32(file->flat + 16);
  if (base < file->first_state) return word(row_of(file, CONSTANTS, (uint32_t)base - FIRST_FREE), 1);
  if (base < file->first_buffer) {
    uint64_t elements, bytes;
    read_tensor(file, row_of(file, STATES, (uint32_t)base - file->first_state), &elements, &bytes);
    return (int64_t)bytes;
  }
  if (base - file->first_buffer >= word(signature, BUFFER_COUNT)) return NO_BYTES;
  return word(row_of(file, BUFFERS, word(signature, BUFFER) + (uint32_t)base - file->first_buffer), 0);
}

static int is_writable(const struct file *file, const uint8_t *signature, uint64_t base) {
  if (base < file->first_buffer) return base == 0 || base == ARENA;
  return word(row_of(file, BUFFERS, word(signature, BUFFER) + (uint32_t)base - file->first_buffer), 1) == 1;
}

/* Whether a port has the type and size of a state. */
static int is_like(const struct file *file, const uint8_t *port, uint32_t state) {
  const uint8_t *row = row_of(file, STATES, state);
  uint64_t elements, bytes, others;
  read_tensor(file, row, &elements, &bytes);
  read_tensor(file, port, &elements, &others);
  return bytes == others && word(row, DTYPE) == word(port, DTYPE);
}

static enum msedge_status check_input(const struct file *file, const uint8_t *signature, const uint8_t *port,
                                      uint64_t bytes) {
  uint32_t base = word(port, PORT_BASE);
  if (word(port, PORT_OFFSET) || word(port, PORT_STATE) || base < file->first_state) return MSEDGE_PORTS;
  if (base < file->first_buffer) return is_like(file, port, base - file->first_state) ? MSEDGE_OK : MSEDGE_PORTS;
  if (bytes_of(file, signature, base) != (int64_t)bytes || is_writable(file, signature, base)) return MSEDGE_PORTS;
  for (const uint8_t *other = row_of(file, PORTS, word(signature, PORT)); other < port; other += ROW[PORTS]) {
    if (word(other, PORT_BASE) == base) return MSEDGE_PORTS; /* two inputs in one buffer */
  }
  return is_block(file, word(port, PORT_SAMPLE), bytes) ? MSEDGE_OK : MSEDGE_BLOCKS;
}

static enum msedge_status check_output(const struct file *file, const uint8_t *signature, const uint8_t *port,
                                       uint64_t bytes) {
  uint32_t base = word(port, PORT_BASE), offset = word(port, PORT_OFFSET), state = word(port, PORT_STATE);
  int64_t there = bytes_of(file, signature, base);
  if (base < ARENA || there < (int64_t)bytes || offset > there - (int64_t)bytes) return MSEDGE_PORTS;
  if (offset % WIDTH[word(port, DTYPE)] || state > file->count[STATES]) return MSEDGE_PORTS;
  if (state) return is_like(file, port, state - 1) ? MSEDGE_OK : MSEDGE_PORTS;
  if (!word(port, PORT_SAMPLE)) return MSEDGE_OK;
  return is_block(file, word(port, PORT_SAMPLE), bytes) ? MSEDGE_OK : MSEDGE_BLOCKS;
}

static enum msedge_status check_ports(const struct file *file, const uint8_t *signature) {
  uint32_t inputs = word(signature, INPUT_COUNT), outputs = word(signature, OUTPUT_COUNT);
  if (inputs > MOST_PORTS || outputs > MOST_PORTS) return MSEDGE_PORTS;
  if (!are_rows(file, PORTS, word(signature, PORT), inputs + outputs)) return MSEDGE_PORTS;
  for (uint32_t i = 0; i < inputs + outputs; i++) {
    const uint8_t *first = row_of(file, PORTS, word(signature, PORT)), *port = first + (size_t)ROW[PORTS] * i;
    uint64_t elements, bytes;
    enum msedge_status status = read_tensor(file, port, &elements, &bytes);
    if (status) return status;
    status = i < inputs ? check_input(file, signature, port, bytes) : check_output(file, signature, port, bytes);
    if (status) return status;
    for (uint32_t j = i < inputs ? 0 : inputs; j < i; j++) {
      if (equal_texts(file, word(port, NAME), word(first + (size_t)ROW[PORTS] * j, NAME))) return MSEDGE_TEXTS;
    }
  }
  return MSEDGE_OK;
}

/* Every operand lies in its buffer, and none that is written lies in a constant, a state or an input. */
static enum msedge_status check_program(const struct file *file, const uint8_t *signature) {
  const uint8_t *program = file->flat + word(signature, PROGRAM), *rows = file->flat + word(signature, OPERANDS);
  int64_t words = word(signature, WORDS), at = 0;
  uint32_t many = word(signature, OPERAND_WORDS), row = 0;
  for (uint32_t step = 0; step < word(signature, STEPS); step++) {
    const uint8_t *record = program + 8 * at;
    if (words - at < HEAD || row >= many) return MSEDGE_PROGRAM;
    int64_t length = load64(record + 8 * LENGTH), flags = load64(record + 8 * FLAGS), kernel = load64(record);
    uint32_t count = load32(rows + 4 * (size_t)row);
    if (length < HEAD || length > words - at || count > (length - HEAD) / 2) return MSEDGE_PROGRAM;
    if (count > (many - row - 1) / 2 || kernel < 0 || kernel >= file->count[KERNELS]) return MSEDGE_PROGRAM;
    if (flags < 0 || flags % 8 >= JUMP) return MSEDGE_PROGRAM;
    for (uint32_t i = 0; i < count; i++) {
      int64_t base = load64(record + 8 * (HEAD + 2 * (size_t)i)), offset = load64(record + 8 * (HEAD + 2 * (size_t)i + 1));
      uint32_t bytes = load32(rows + 4 * ((size_t)row + 1 + 2 * (size_t)i));
      uint32_t role = load32(rows + 4 * ((size_t)row + 2 + 2 * (size_t)i));
      int64_t there = base < 0 ? NO_BYTES : bytes_of(file, signature, (uint64_t)base);
      if (there < bytes || offset < 0 || offset > there - bytes || role > SCRATCH) return MSEDGE_PROGRAM;
      if (role != READ && !is_writable(file, signature, (uint64_t)base)) return MSEDGE_PROGRAM;
    }
    at += length;
    row += 1 + 2 * count;
  }
  return at == words && row == many ? MSEDGE_OK : MSEDGE_PROGRAM;
}

static enum msedge_status check_signature(const struct file *file, const uint8_t *signature) {
  if (!is_text(file, word(signature, NAME))) return MSEDGE_TEXTS;
  if (word(signature, RUNS) < 1 || word(signature, RUNS) > MOST_RUNS) return MSEDGE_SIGNATURES;
  if (word(signature, TOLERANCE) > 0x7f800000) return MSEDGE_SIGNATURES; /* negative, or NaN */
  if (!is_block(file, word(signature, PROGRAM), (uint64_t)word(signature, WORDS) * 8)) return MSEDGE_BLOCKS;
  if (!is_block(file, word(signature, OPERANDS), (uint64_t)word(signature, OPERAND_WORDS) * 4)) return MSEDGE_BLOCKS;
  if (!are_rows(file, NODES, word(signature, NODE), word(signature, NODE_COUNT))) return MSEDGE_SIGNATURES;
  if (!are_rows(file, BUFFERS, word(signature, BUFFER), word(signature, BUFFER_COUNT))) return MSEDGE_SIGNATURES;
  for (uint32_t i = 0; i < word(signature, BUFFER_COUNT); i++) {
    if (word(row_of(file, BUFFERS, word(signature, BUFFER) + i), 1) > 1) return MSEDGE_SIGNATURES;
  }
  enum msedge_status status = check_ports(file, signature);
  return status ? status : check_program(file, signature);
}

static enum msedge_status check(struct file *file, const struct msedge_kernels *kernels, const void *flat, size_t bytes) {
  enum msedge_status status = read_header(file, kernels, flat, bytes);
  if (!status) status = check_tables(file);
  if (status) return status;
  if (file->count[SIGNATURES] < 1 || file->count[SIGNATURES] > MOST_SIGNATURES) return MSEDGE_SIGNATURES;
  for (uint32_t i = 0; i < file->count[SIGNATURES]; i++) {
    const uint8_t *row = row_of(file, SIGNATURES, i);
    status = check_signature(file, row);
    if (status) return status;
    for (uint32_t j = 0; j < i; j++) {
      if (equal_texts(file, word(row, NAME), word(row_of(file, SIGNATURES, j), NAME))) return MSEDGE_TEXTS;
    }
  }
  return MSEDGE_OK;
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

/* Offsets of what a model keeps in its memory. */
struct layout {
  uint64_t bases, signatures, ports, arena, states, buffers, end;
};

static uint64_t aligned(uint64_t bytes) {
  return (bytes + MSEDGE_ALIGN - 1) / MSEDGE_ALIGN * MSEDGE_ALIGN;
}

static int reads_state(const struct file *file, const uint8_t *port) {
  return word(port, PORT_BASE) >= file->first_state && word(port, PORT_BASE) < file->first_buffer;
}

/* Whether a port is the caller's. */
static int is_seen(const struct file *file, const uint8_t *signature, uint32_t number) {
  const uint8_t *port = row_of(file, PORTS, word(signature, PORT) + number);
  return number < word(signature, INPUT_COUNT) ? !reads_state(file, port) : !word(port, PORT_STATE);
}

static struct layout lay_out(const struct file *file) {
  struct layout layout = {0, 0, 0, 0, 0, 0, 0};
  uint64_t ports = file->count[STATES], most = 0, largest = 0;
  for (uint32_t i = 0; i < file->count[SIGNATURES]; i++) {
    const uint8_t *signature = row_of(file, SIGNATURES, i);
    uint64_t shared = 0;
    for (uint32_t j = 0; j < word(signature, BUFFER_COUNT); j++) {
      shared += aligned(word(row_of(file, BUFFERS, word(signature, BUFFER) + j), 0));
    }
    for (uint32_t j = 0; j < word(signature, INPUT_COUNT) + word(signature, OUTPUT_COUNT); j++) {
      ports += (uint64_t)is_seen(file, signature, j);
    }
    if (shared > largest) largest = shared;
    if (word(signature, BUFFER_COUNT) > most) most = word(signature, BUFFER_COUNT);
  }
  layout.signatures = aligned((file->first_buffer + most) * sizeof(int64_t));
  layout.ports = layout.signatures + aligned(file->count[SIGNATURES] * sizeof(struct msedge_signature));
  layout.arena = layout.ports + aligned(ports * sizeof(struct msedge_port));
  layout.states = layout.arena + aligned(load32(file->flat + 16));
  layout.buffers = layout.states;
  for (uint32_t i = 0; i < file->count[STATES]; i++) {
    layout.buffers += aligned((uint64_t)bytes_of(file, 0, file->first_state + i));
  }
  layout.end = layout.buffers + largest;
  return layout;
}

static int64_t address(const void *pointer) {
  return (int64_t)(uintptr_t)pointer;
}

static void *pointer(int64_t address) {
  return (void *)(uintptr_t)address;
}

static struct msedge_port port_of(const struct file *file, const uint8_t *row, void *data, uint32_t block) {
  uint64_t elements, bytes;
  read_tensor(file, row, &elements, &bytes);
  struct msedge_port port = {
      text(file, word(row, NAME)), data, block ? file->flat + block : NULL,
      (const uint32_t *)(const void *)row_of(file, SIZES, word(row, SIZE)), word(row, RANK),
      (enum msedge_dtype)word(row, DTYPE), (size_t)elements, (size_t)bytes};
  return port;
}

/* Sets the bases of a signature's buffers. */
static void place_buffers(const struct msedge *model, const struct file *file, const uint8_t *signature) {
  uint8_t *at = model->buffers;
  for (uint32_t i = 0; i < word(signature, BUFFER_COUNT); i++) {
    model->bases[file->first_buffer + i] = address(at);
    at += aligned(word(row_of(file, BUFFERS, word(signature, BUFFER) + i), 0));
  }
}

/* The tables of a file that was checked. */
static struct file opened(const struct msedge *model) {
  struct file file = {model->flat, 0, {0}, {0}, 0, 0};
  for (int i = 0; i < TABLES; i++) {
    file.at[i] = load32(model->flat + DIRECTORY + 8 * i);
    file.count[i] = load32(model->flat + DIRECTORY + 8 * i + 4);
  }
  file.first_state = FIRST_FREE + file.count[CONSTANTS];
  file.first_buffer = file.first_state + file.count[STATES];
  return file;
}

/* -- what a program calls ------------------------------------------------------------------------------------------ */

enum msedge_status msedge_size(const struct msedge_kernels *kernels, const void *flat, size_t bytes, size_t *needed) {
  struct file file;
  enum msedge_status status = check(&file, kernels, flat, bytes);
  *needed = 0;
  if (status) return status;
  uint64_t end = lay_out(&file).end;
  if (end > SIZE_MAX) return MSEDGE_MEMORY;
  *needed = (size_t)end;
  return MSEDGE_OK;
}

static void fill(struct msedge *model, const struct file *file, struct msedge_port *port, uint8_t *states) {
  for (uint32_t i = 0; i < file->count[CONSTANTS]; i++) {
    model->bases[FIRST_FREE + i] = address(file->flat + word(row_of(file, CONSTANTS, i), 0));
  }
  for (uint32_t i = 0; i < file->count[STATES]; i++) {
    const uint8_t *row = row_of(file, STATES, i);
    *port = port_of(file, row, states, word(row, STATE_BLOCK));
    model->bases[file->first_state + i] = address(states);
    states += aligned(port->bytes);
    port++;
  }
  for (uint32_t i = 0; i < file->count[SIGNATURES]; i++) {
    const uint8_t *row = row_of(file, SIGNATURES, i);
    union {
      uint32_t bits;
      float number;
    } tolerance = {word(row, TOLERANCE)};
    struct msedge_signature made = {text(file, word(row, NAME)), port, port, 0, 0, word(row, RUNS), tolerance.number, row};
    place_buffers(model, file, row);
    for (uint32_t j = 0; j < word(row, INPUT_COUNT) + word(row, OUTPUT_COUNT); j++) {
      const uint8_t *each = row_of(file, PORTS, word(row, PORT) + j);
      if (j == word(row, INPUT_COUNT)) made.outputs = port;
      if (!is_seen(file, row, j)) continue;
      uint8_t *data = pointer(model->bases[word(each, PORT_BASE)] + word(each, PORT_OFFSET));
      *port++ = port_of(file, each, data, word(each, PORT_SAMPLE));
      if (j < word(row, INPUT_COUNT)) made.input_count++;
      else made.output_count++;
    }
    model->signatures[i] = made;
  }
}

enum msedge_status msedge_open(struct msedge *model, const struct msedge_kernels *kernels, const void *flat,
                               size_t bytes, void *memory, size_t memory_bytes) {
  struct file file;
  enum msedge_status status = check(&file, kernels, flat, bytes);
  if (status) return status;
  struct layout layout = lay_out(&file);
  uint8_t *start = memory;
  if ((uintptr_t)memory % MSEDGE_ALIGN) return MSEDGE_MISALIGNED;
  if (layout.end > memory_bytes) return MSEDGE_MEMORY;
  model->signatures = (struct msedge_signature *)(void *)(start + layout.signatures);
  model->states = (struct msedge_port *)(void *)(start + layout.ports);
  model->signature_count = file.count[SIGNATURES];
  model->state_count = file.count[STATES];
  model->made_by = text(&file, load32(file.flat + 20));
  model->bundle = text(&file, load32(file.flat + 24));
  model->where = "";
  model->flat = flat;
  model->kernels = kernels;
  model->bases = (int64_t *)memory;
  model->buffers = start + layout.buffers;
  model->fault = 0;
  model->bases[0] = 0;
  model->bases[ARENA] = address(start + layout.arena);
  fill(model, &file, model->states, start + layout.states);
  msedge_reset(model);
  return MSEDGE_OK;
}

enum msedge_status msedge_run(struct msedge *model, uint32_t number) {
  if (number >= model->signature_count) return MSEDGE_NO_SIGNATURE;
  struct file file = opened(model);
  const uint8_t *signature = model->signatures[number].row;
  const uint8_t *step = file.flat + word(signature, PROGRAM), *end = step + 8 * (size_t)word(signature, WORDS);
  model->bases[FAULT] = address(&model->fault); /* the model may have moved */
  place_buffers(model, &file, signature);
  for (; step < end; step += 8 * (size_t)load64(step + 8 * LENGTH)) {
    model->kernels->table[load64(step)]((const int64_t *)(const void *)step, model->bases, 0, 1);
  }
  if (model->fault) {
    uint64_t unit = (uint64_t)model->fault >> 8;
    int known = unit < word(signature, NODE_COUNT);
    model->where = known ? text(&file, word(row_of(&file, NODES, word(signature, NODE) + (uint32_t)unit), NAME)) : "a step";
    model->fault = 0;
    return MSEDGE_INDEX;
  }
  uint32_t inputs = word(signature, INPUT_COUNT);
  for (uint32_t i = 0; i < word(signature, OUTPUT_COUNT); i++) {
    const uint8_t *row = row_of(&file, PORTS, word(signature, PORT) + inputs + i);
    if (word(row, PORT_STATE)) {
      struct msedge_port *state = &model->states[word(row, PORT_STATE) - 1];
      copy(state->data, pointer(model->bases[word(row, PORT_BASE)] + word(row, PORT_OFFSET)), state->bytes);
    }
  }
  return MSEDGE_OK;
}

void msedge_reset(struct msedge *model) {
  for (uint32_t i = 0; i < model->state_count; i++) {
    copy(model->states[i].data, model->states[i].sample, model->states[i].bytes);
  }
}

const char *msedge_text(enum msedge_status status) {
  static const char *const TEXT[] = {
      "ok",
      "the file or the memory does not begin at a multiple of MSEDGE_ALIGN bytes: align it",
      "the file is no flat file: give the model.msflat that msedge build wrote",
      "the file has another version than this reader: use the msedge.c of the same build",
      "the file is shortened, or longer than its header says: copy it again",
      "the file is damaged, its contents differ from its digest: copy it again",
      "the file was built for another target than the kernels: use the files of one build",
      "the file belongs to other kernels: use the kernels.o of the same build",
      "the file is damaged: a table lies outside it",
      "the file is damaged: a name lies outside the texts, is no UTF-8, or occurs twice",
      "the file is damaged: a tensor has an unknown type, or a shape that is too large",
      "the file is damaged: a block lies outside it",
      "the file is damaged: a signature's numbers are out of range",
      "the file is damaged: an input or output does not fit its buffer or its state",
      "the file is damaged: a step is none, or names memory outside its buffers",
      "too little memory: give as much as msedge_size says",
      "there is no signature with this number",
      "an index is outside the tensor that it indexes: check the inputs that hold indices",
      "an output differs from the sample: the kernels compute wrongly here, or the files are damaged"};
  return (size_t)status < sizeof TEXT / sizeof *TEXT ? TEXT[status] : "unknown status";
}

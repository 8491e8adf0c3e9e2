/* Compares a model's results with the sample in its file. */
#include "msedge.h"

static int bits_equal(const uint8_t *a, const uint8_t *b, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    if (a[i] != b[i]) return 0;
  }
  return 1;
}

static float half(uint16_t bits) {
  uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
  float value = (float)(exponent ? 1024 + fraction : fraction);
  if (exponent == 31) return fraction ? value / 0.0f - value / 0.0f : value / 0.0f;
  for (uint32_t i = exponent ? exponent : 1; i < 25; i++) value *= 0.5f;
  for (uint32_t i = 25; i < exponent; i++) value *= 2.0f;
  return bits >> 15 ? -value : value;
}

/* The number at a place; of a double, rounded, as far as single precision shows a difference. */
static float number(const void *data, enum msedge_dtype dtype, size_t i) {
  if (dtype == MSEDGE_FLOAT16) return half(((const uint16_t *)data)[i]);
  if (dtype == MSEDGE_FLOAT32) return ((const float *)data)[i];
  return (float)((const double *)data)[i];
}

static int is_finite(float value) {
  return value - value == 0.0f;
}

static int near(const struct msedge_port *port, float tolerance) {
  float largest = 0.0f, scale = 1e-6f;
  for (size_t i = 0; i < port->elements; i++) {
    float got = number(port->data, port->dtype, i), expected = number(port->sample, port->dtype, i);
    float apart = got > expected ? got - expected : expected - got, size = expected < 0.0f ? -expected : expected;
    if (is_finite(expected) && size > scale) scale = size;
    if (got == expected || (got != got && expected != expected)) continue;
    if (!is_finite(got) || !is_finite(expected)) return 0;
    if (apart > largest) largest = apart;
  }
  return largest <= tolerance * scale;
}

static enum msedge_status compare(struct msedge *model, uint32_t number) {
  const struct msedge_signature *signature = &model->signatures[number];
  for (uint32_t run = 0; run < signature->sample_runs; run++) {
    for (uint32_t i = 0; i < signature->input_count; i++) {
      const struct msedge_port *port = &signature->inputs[i];
      const uint8_t *from = port->sample;
      for (size_t j = 0; j < port->bytes; j++) ((uint8_t *)port->data)[j] = from[j];
    }
    enum msedge_status status = msedge_run(model, number);
    if (status) return status;
  }
  for (uint32_t i = 0; i < signature->output_count; i++) {
    const struct msedge_port *port = &signature->outputs[i];
    int whole = port->dtype < MSEDGE_FLOAT16;
    if (!port->sample) continue;
    if (whole ? bits_equal(port->data, port->sample, port->bytes) : near(port, signature->tolerance)) continue;
    model->where = port->name;
    return MSEDGE_DIFFERS;
  }
  return MSEDGE_OK;
}

enum msedge_status msedge_test(struct msedge *model, uint32_t signature) {
  if (signature >= model->signature_count) return MSEDGE_NO_SIGNATURE;
  msedge_reset(model);
  enum msedge_status status = compare(model, signature);
  msedge_reset(model);
  return status;
}

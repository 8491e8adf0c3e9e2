/* Runs all signatures of a model ROUNDS times on numbers that the test also makes, and prints outputs and states. */
#include "msedge.h"
#include "msedge_model.h"
#include "startup.h"

static struct msedge model;
static uint8_t memory[MSEDGE_MODEL_MEMORY] __attribute__((aligned(MSEDGE_ALIGN)));
static uint32_t state = 1;

static uint32_t next(void) {
  state = state * 1664525u + 1013904223u;
  return state >> 16;
}

static void fill(const struct msedge_port *port) {
  for (size_t i = 0; i < port->elements; i++) {
    uint32_t number = next();
    switch (port->dtype) {
      case MSEDGE_BOOL: ((uint8_t *)port->data)[i] = number & 1; break;
      case MSEDGE_INT8: case MSEDGE_UINT8: ((uint8_t *)port->data)[i] = (uint8_t)number; break;
      case MSEDGE_INT16: ((uint16_t *)port->data)[i] = (uint16_t)number; break;
      case MSEDGE_FLOAT32: ((float *)port->data)[i] = (float)(int8_t)number / 32; break;
      case MSEDGE_INT64: ((int64_t *)port->data)[i] = number % 3; break;
      case MSEDGE_INT32: ((int32_t *)port->data)[i] = (int32_t)number; break;
      default: print("no numbers for this type\n"); finish(4);
    }
  }
}

static void show(const struct msedge_port *port) {
  print(port->name);
  print(" ");
  for (size_t i = 0; i < port->bytes; i++) {
    uint8_t byte = ((const uint8_t *)port->data)[i];
    char text[3] = {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15], 0};
    print(text);
  }
  print("\n");
}

int main(void) {
  size_t bytes = (size_t)(msedge_model_end - msedge_model), needed = 0;
  if (msedge_size(&msedge_kernels, msedge_model, bytes, &needed) != MSEDGE_OK) return 1;
  print_number("needed ", (long)needed, "\n");
  enum msedge_status status = msedge_open(&model, &msedge_kernels, msedge_model, bytes, memory, sizeof memory);
  if (status != MSEDGE_OK) print(msedge_text(status));
  if (status != MSEDGE_OK) return 2;
  for (int round = 0; round < ROUNDS; round++) {
    for (uint32_t i = 0; i < model.signature_count; i++) {
      const struct msedge_signature *signature = &model.signatures[i];
      for (uint32_t j = 0; j < signature->input_count; j++) fill(&signature->inputs[j]);
      status = msedge_run(&model, i);
      if (status != MSEDGE_OK) print(msedge_text(status));
      if (status != MSEDGE_OK) return 3;
      for (uint32_t j = 0; j < signature->output_count; j++) show(&signature->outputs[j]);
    }
  }
  for (uint32_t i = 0; i < model.state_count; i++) show(&model.states[i]);
  print_number("stack ", (long)stack_used(), "\n");
  return 0;
}

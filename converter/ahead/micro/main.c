/* Runs the sample of every signature, compares it with the values in the file, and shows the results' first bytes. */
#include "msedge.h"
#include "msedge_model.h"
#include "startup.h"

static struct msedge model;
static uint8_t memory[MSEDGE_MODEL_MEMORY] __attribute__((aligned(MSEDGE_ALIGN)));

enum { SHOWN = 32 };

static void show(const struct msedge_port *port) {
  const uint8_t *bytes = port->data;
  char text[2 * SHOWN + 1];
  size_t count = port->bytes < SHOWN ? port->bytes : SHOWN;
  for (size_t i = 0; i < count; i++) {
    text[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
    text[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
  }
  text[2 * count] = 0;
  print("  ");
  print(port->name);
  print(" ");
  print(text);
  print(port->bytes > SHOWN ? "...\n" : "\n");
}

static int failed(const char *what, enum msedge_status status) {
  print(what);
  print(": ");
  print(msedge_text(status));
  print("\n");
  return 1;
}

int main(void) {
  const size_t bytes = (size_t)(msedge_model_end - msedge_model);
  enum msedge_status status = msedge_open(&model, &msedge_kernels, msedge_model, bytes, memory, sizeof memory);
  if (status != MSEDGE_OK) return failed("open", status);
  for (uint32_t i = 0; i < model.signature_count; i++) {
    const struct msedge_signature *signature = &model.signatures[i];
    status = msedge_test(&model, i);
    if (status != MSEDGE_OK) return failed(signature->name, status);
    print(signature->name);
    print(": as on the machine that built it\n");
    for (uint32_t j = 0; j < signature->output_count; j++) show(&signature->outputs[j]);
  }
  print_number("memory ", (long)sizeof memory, " bytes, ");
  print_number("stack ", (long)stack_used(), " bytes\n");
  return 0;
}

/* What a Cortex-M needs before main: vectors, the floating-point and vector unit switched on, memory as C expects it.
 * And what the example needs of an emulator or a debugger (semihosting): text, and the end of the program. */
#include <stdint.h>

#include "startup.h"

extern uint32_t stack_top, data_from, data_begin, data_end, bss_begin, bss_end;
int main(void);

static int semihosting(int operation, const void *argument) {
  register int r0 __asm__("r0") = operation;
  register const void *r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

void print(const char *text) { semihosting(0x04, text); } /* SYS_WRITE0 */

void print_number(const char *before, long number, const char *after) {
  char digits[12], *at = digits + sizeof digits;
  unsigned long rest = number < 0 ? 0ul - (unsigned long)number : (unsigned long)number;
  *--at = 0;
  do *--at = (char)('0' + rest % 10); while ((rest /= 10) != 0);
  if (number < 0) *--at = '-';
  print(before);
  print(at);
  print(after);
}

void finish(int code) {
  uint32_t block[2] = {0x20026, (uint32_t)code}; /* ADP_Stopped_ApplicationExit */
  semihosting(0x20, block);                      /* SYS_EXIT_EXTENDED */
  for (;;) {
  }
}

/* Memory below the stack is filled with a pattern, of which what is left shows how far the stack went. */
#define PATTERN 0x5AFE5AFEu

unsigned long stack_used(void) {
  const uint32_t *at = &bss_end;
  while (at < &stack_top && *at == PATTERN) at++;
  return (unsigned long)((const char *)&stack_top - (const char *)at);
}

__attribute__((used, noreturn)) static void begin(void) {
  *(volatile uint32_t *)0xE000ED88u |= 0xFu << 20; /* CPACR: full access to CP10 and CP11 */
  __asm__ volatile("dsb\n isb" ::: "memory");
  for (const uint32_t *from = &data_from, *end = &data_end, *to = &data_begin; to < end; to++)
    *(uint32_t *)(uintptr_t)to = *from++;
  for (volatile uint32_t *to = &bss_begin; to < &bss_end; to++) *to = 0;
  uint32_t here;
  for (volatile uint32_t *to = &bss_end; to + 16 < &here; to++) *to = PATTERN;
  finish(main());
}

__attribute__((naked, noreturn, used)) void reset(void) {
  __asm__ volatile("ldr r0, =stack_top\n mov sp, r0\n b begin\n");
}

__attribute__((noreturn)) static void fault(void) {
  print("fault: the processor stopped at an instruction or address that it refuses\n");
  finish(99);
}

__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
    &stack_top, (void *)reset, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)fault};

/* See startup.c. */
#ifndef STARTUP_H
#define STARTUP_H
void print(const char *text);
void print_number(const char *before, long number, const char *after);
__attribute__((noreturn)) void finish(int code);
unsigned long stack_used(void);
#endif

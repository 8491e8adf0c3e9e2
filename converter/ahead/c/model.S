/* model.msflat as a part of a program, which reads its constants where they lie. */
#ifdef __APPLE__
#define MODEL _msedge_model
#define END _msedge_model_end
  .const
#elif defined _WIN32
#define MODEL msedge_model
#define END msedge_model_end
  .section .rdata, "dr"
#else
#define MODEL msedge_model
#define END msedge_model_end
  .section .note.GNU-stack, "", %progbits
  .section .rodata
#endif
  .balign 64
  .globl MODEL
  .globl END
MODEL:
  .incbin "model.msflat"
END:

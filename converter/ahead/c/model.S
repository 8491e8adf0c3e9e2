/* model.msflat as a part of a program, which reads its constants where they lie. */
  .section .rodata
  .balign 64
  .globl msedge_model
  .globl msedge_model_end
msedge_model:
  .incbin "model.msflat"
msedge_model_end:
  .section .note.GNU-stack, "", %progbits

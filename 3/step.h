#ifndef STEP_H
#define STEP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Weights, optimizer states and statistics: all that a step changes. */
typedef struct {
  float w0[802816];
  float b0[1024];
  float w1[1048576];
  float b1[1024];
  float w2[10240];
  float b2[10];
} step_state;

/* Intermediate results; nothing in it is kept from step to step. */
typedef struct {
  float scratch_float[432560];
  float x_x[25088];
  float x_y_target[320];
} step_memory;

/* Rows: a batch of 32, or all of them. */
typedef struct {
  const float *x;  /* 784 a row */
  const float *y_target;  /* 10 a row */
} step_rows;

/* The number of batches seen, and what else a step reads. */
typedef struct {
  int64_t iteration;
  intptr_t threads_;
  void (*op_large_f_)(void);
} step_given;

/* Train on one batch, whose loss before the step is put into loss. Returns 0, or the code of a refusal: an index or a
   label that is out of range. Then neither the state nor the number of batches has changed. */
int32_t step_step(step_state *state, step_memory *memory, const step_rows *batch, step_given *given,
    float *loss);

/* Train on many batches: order has the numbers of the 32 rows of each, losses has room for a number of each.
   Returns 0, or the code of the first refusal: the batches before it, as many as the iteration has grown by, were
   trained. */
int32_t step_train(step_state *state, step_memory *memory, const step_rows *rows, step_given *given,
    const int64_t *order, int64_t steps, float *losses);

/* A code in words; codes are from 0, nothing was refused, to 0. */
const char *step_refusal(int32_t code);

#ifdef __cplusplus
}
#endif

#endif

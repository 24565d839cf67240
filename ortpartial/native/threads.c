/* ---- Threads: parts of a task, computed by threads that sleep between tasks. Where the file that includes this text
   does not define OP_POOL, a task is computed by the thread that calls. ---- */

/* A part of a task, with memory of its own to compute in. */
typedef void op_task(const void *work, op_index part, char *scratch);

/* The number of threads of a step. */
#ifndef OP_THREADS
#define OP_THREADS 1
#endif

#if defined(OP_POOL) && defined(__GNUC__) && (defined(__unix__) || defined(__APPLE__))
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

/* Turns of a thread that waits, before it sleeps: some microseconds, which is less than waking it up takes. */
#define OP_TURNS 2000

#if defined(__SSE2__)
#define OP_PAUSE() _mm_pause()
#elif defined(__aarch64__)
#define OP_PAUSE() __asm__ volatile("yield")
#else
#define OP_PAUSE() ((void)0)
#endif

static pthread_mutex_t op_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t op_begins = PTHREAD_COND_INITIALIZER, op_ends = PTHREAD_COND_INITIALIZER;

/* Threads and their task. The mutex guards all of it; `number` and `done` are also read without it. */
static struct {
    op_task *task;
    const void *work;
    size_t bytes;
    op_index parts, next, done, number;
    int threads, wanted, sleeping, is_waiting, is_busy, is_registered;
} op_pool;

/* A child process has no threads but the one that forked. */
static void op_leave_pool(void) {
    const pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    const pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    op_mutex = mutex;
    op_begins = op_ends = condition;
    op_pool.threads = op_pool.sleeping = op_pool.is_waiting = op_pool.is_busy = 0;
}

/* Compute parts until none is left. The mutex is held before and after. */
static void op_take_parts(char *scratch) {
    while (op_pool.next < op_pool.parts) {
        const op_index part = op_pool.next++;
        op_task *const task = op_pool.task;
        const void *const work = op_pool.work;
        pthread_mutex_unlock(&op_mutex);
        task(work, part, scratch);
        pthread_mutex_lock(&op_mutex);
        __atomic_store_n(&op_pool.done, op_pool.done + 1, __ATOMIC_RELEASE);
        if (op_pool.done == op_pool.parts && op_pool.is_waiting) pthread_cond_signal(&op_ends);
    }
}

static void *op_work(void *argument) {
    const int me = (int)(op_index)argument;
    op_index number = 0;
    size_t bytes = 0;
    char *memory = 0;
    op_flush_denormals();
    pthread_mutex_lock(&op_mutex);
    for (;;) {
        if (number == op_pool.number) {
            pthread_mutex_unlock(&op_mutex);
            for (int turn = 0; turn < OP_TURNS && __atomic_load_n(&op_pool.number, __ATOMIC_ACQUIRE) == number; ++turn)
                OP_PAUSE();
            pthread_mutex_lock(&op_mutex);
        }
        while (number == op_pool.number) {
            ++op_pool.sleeping;
            pthread_cond_wait(&op_begins, &op_mutex);
            --op_pool.sleeping;
        }
        number = op_pool.number;
        if (me >= op_pool.wanted) continue;
        if (bytes < op_pool.bytes) {
            free(memory);
            bytes = op_pool.bytes;
            memory = (char *)malloc(bytes + 64);
            if (!memory) bytes = 0;
        }
        if (memory) op_take_parts(memory + (64 - (uintptr_t)memory % 64));
    }
    return 0;
}

/* Start threads up to so many, or as many as there can be. Signals go to the threads that were there before. */
static void op_start(int count) {
    sigset_t all, before;
    sigfillset(&all);
    if (op_pool.threads >= count || pthread_sigmask(SIG_SETMASK, &all, &before)) return;
    while (op_pool.threads < count) {
        pthread_t thread;
        if (pthread_create(&thread, 0, op_work, (void *)(op_index)op_pool.threads)) break;
        pthread_detach(thread);
        ++op_pool.threads;
    }
    pthread_sigmask(SIG_SETMASK, &before, 0);
}

/* Begin another task with so many threads beside this one, unless there is one. */
static int op_begin(op_task *task, const void *work, op_index parts, int helpers, size_t bytes) {
    pthread_mutex_lock(&op_mutex);
    if (op_pool.is_busy) {
        pthread_mutex_unlock(&op_mutex);
        return 0;
    }
    if (!op_pool.is_registered) op_pool.is_registered = pthread_atfork(0, 0, op_leave_pool) == 0;
    if (op_pool.is_registered) op_start(helpers);
    op_pool.is_busy = 1;
    op_pool.task = task;
    op_pool.work = work;
    op_pool.bytes = bytes;
    op_pool.parts = parts;
    op_pool.next = 0;
    op_pool.wanted = helpers;
    op_pool.is_waiting = 0;
    __atomic_store_n(&op_pool.done, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&op_pool.number, op_pool.number + 1, __ATOMIC_RELEASE);
    if (op_pool.sleeping) pthread_cond_broadcast(&op_begins);
    return 1;
}

/* Compute the parts of a task, by at most so many threads. Each of them has so many bytes, aligned to a line of the
   cache, to compute in: the one that calls has `scratch`. */
static void op_share(op_task *task, const void *work, op_index parts, op_index threads, char *scratch, size_t bytes) {
    const op_index most = threads < parts ? threads : parts;
    if (most < 2 || !op_begin(task, work, parts, (int)most - 1, bytes)) {
        for (op_index part = 0; part < parts; ++part) task(work, part, scratch);
        return;
    }
    op_take_parts(scratch);
    if (op_pool.done < parts) {
        pthread_mutex_unlock(&op_mutex);
        for (int turn = 0; turn < OP_TURNS && __atomic_load_n(&op_pool.done, __ATOMIC_ACQUIRE) < parts; ++turn)
            OP_PAUSE();
        pthread_mutex_lock(&op_mutex);
    }
    op_pool.is_waiting = 1;
    while (op_pool.done < parts) pthread_cond_wait(&op_ends, &op_mutex);
    op_pool.is_busy = 0;
    pthread_mutex_unlock(&op_mutex);
}
#else
OP_INLINE void op_share(op_task *task, const void *work, op_index parts, op_index threads, char *scratch,
                        size_t bytes) {
    (void)threads, (void)bytes;
    for (op_index part = 0; part < parts; ++part) task(work, part, scratch);
}
#endif

// The few types of cuBLAS that torch's headers name: the library itself is 500 MB, and none of its functions is called.
#pragma once
typedef struct cublasContext* cublasHandle_t;
typedef enum { CUBLAS_STATUS_SUCCESS = 0 } cublasStatus_t;

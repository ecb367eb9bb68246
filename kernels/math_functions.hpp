// Elementary functions of our own, in double precision. The platform's differ between versions of
// libm; these are sums and products in a written order, the same on every machine.
#pragma once

namespace troupe::kernels {

// sin(x) and cos(x) for |x| <= 2^20, absolute error below 1e-10 there and below 1e-15 for small |x|.
void sine_cosine(double x, double& sine, double& cosine);

// exp(x) for |x| <= 700, and the natural logarithm of a positive normal number; relative error of a few ulp.
double exp_f64(double x);
double log_f64(double x);

}  // namespace troupe::kernels

// The cells of LSTM and GRU. A device of its own is asked for all gates of a step at once, and torch's CPU has no such
// kernels. So it gets them here, out of its other kernels: they run in one task of a lane, and count as one kernel.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <optional>
#include <tuple>
#include <vector>

namespace simulated::recurrent {

using at::Tensor;

inline Tensor plus(const Tensor& x, const std::optional<Tensor>& bias) {
  return bias.has_value() && bias->defined() ? x + *bias : x;
}

inline Tensor or_zeros(const std::optional<Tensor>& x, const Tensor& like) {
  return x.has_value() && x->defined() ? *x : at::zeros_like(like);
}

// The derivatives of sigmoid and tanh, from their results.
inline Tensor slope_of_sigmoid(const Tensor& y) {
  return y * (1 - y);
}

inline Tensor slope_of_tanh(const Tensor& y) {
  return 1 - y * y;
}

inline Tensor summed(const Tensor& gates, bool has_bias) {
  return has_bias ? gates.sum(0) : Tensor();
}

// ---- LSTM: gates are, in this order, input, forget, cell, output. The workspace holds them for backward.

inline std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                                    const Tensor& cell_before,
                                                    const std::optional<Tensor>& input_bias,
                                                    const std::optional<Tensor>& hidden_bias) {
  Tensor gates = plus(input_gates, input_bias) + plus(hidden_gates, hidden_bias);
  std::vector<Tensor> parts = gates.chunk(4, 1);
  Tensor input = parts[0].sigmoid();
  Tensor forget = parts[1].sigmoid();
  Tensor proposed = parts[2].tanh();
  Tensor output = parts[3].sigmoid();
  Tensor cell = forget * cell_before + input * proposed;
  return {output * cell.tanh(), cell, at::cat({input, forget, proposed, output}, 1)};
}

// Returns the gradients of the gates, of the cell before, of the bias.
inline std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hidden,
                                                             const std::optional<Tensor>& grad_cell,
                                                             const Tensor& cell_before, const Tensor& cell,
                                                             const Tensor& workspace, bool has_bias) {
  std::vector<Tensor> parts = workspace.chunk(4, 1);
  const Tensor& input = parts[0];
  const Tensor& forget = parts[1];
  const Tensor& proposed = parts[2];
  const Tensor& output = parts[3];
  Tensor hidden = or_zeros(grad_hidden, cell);
  Tensor squashed = cell.tanh();
  Tensor whole = or_zeros(grad_cell, cell) + hidden * output * slope_of_tanh(squashed);
  Tensor gates = at::cat(
      {
          whole * proposed * slope_of_sigmoid(input),
          whole * cell_before * slope_of_sigmoid(forget),
          whole * input * slope_of_tanh(proposed),
          hidden * squashed * slope_of_sigmoid(output),
      },
      1);
  return {gates, whole * forget, summed(gates, has_bias)};
}

// ---- GRU: gates are, in this order, reset, update, new

inline std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                           const Tensor& hidden_before, const std::optional<Tensor>& input_bias,
                                           const std::optional<Tensor>& hidden_bias) {
  std::vector<Tensor> from_input = plus(input_gates, input_bias).chunk(3, 1);
  std::vector<Tensor> from_hidden = plus(hidden_gates, hidden_bias).chunk(3, 1);
  Tensor reset = (from_input[0] + from_hidden[0]).sigmoid();
  Tensor update = (from_input[1] + from_hidden[1]).sigmoid();
  Tensor proposed = (from_input[2] + reset * from_hidden[2]).tanh();
  Tensor hidden = proposed + update * (hidden_before - proposed);
  return {hidden, at::cat({reset, update, proposed, hidden_before, from_hidden[2]}, 1)};
}

// Returns the gradients of both kinds of gates, of the hidden state before, of both biases.
inline std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hidden,
                                                                            const Tensor& workspace, bool has_bias) {
  std::vector<Tensor> parts = workspace.chunk(5, 1);
  const Tensor& reset = parts[0];
  const Tensor& update = parts[1];
  const Tensor& proposed = parts[2];
  const Tensor& hidden_before = parts[3];
  const Tensor& from_hidden = parts[4];
  Tensor of_update = grad_hidden * (hidden_before - proposed) * slope_of_sigmoid(update);
  Tensor of_proposed = grad_hidden * (1 - update) * slope_of_tanh(proposed);
  Tensor of_reset = of_proposed * from_hidden * slope_of_sigmoid(reset);
  Tensor input_gates = at::cat({of_reset, of_update, of_proposed}, 1);
  Tensor hidden_gates = at::cat({of_reset, of_update, of_proposed * reset}, 1);
  Tensor input_bias = summed(input_gates, has_bias);
  Tensor hidden_bias = summed(hidden_gates, has_bias);
  return {input_gates, hidden_gates, grad_hidden * update, input_bias, hidden_bias};
}

}  // namespace simulated::recurrent

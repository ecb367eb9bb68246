// The subcommands. Each adds itself to the command line and sets the exit code when it has run.
#pragma once

#include <CLI/CLI.hpp>

#include "runtime/error.hpp"

namespace troupe {

constexpr int exit_failed = 1;
constexpr int exit_usage = 2;
constexpr int exit_refused = 3;

void add_serve(CLI::App& app, int& exit_code);
// `arguments` start the process again when the node joins as a new incarnation.
void add_node(CLI::App& app, int& exit_code, char** arguments);
void add_drain(CLI::App& app, int& exit_code);
void add_generate(CLI::App& app, int& exit_code);
void add_place(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);

// Prints "troupe: <message>" to stderr and gives the exit code for it.
int report(const error& failure);

}  // namespace troupe

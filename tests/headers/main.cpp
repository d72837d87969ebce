// SPDX-License-Identifier: Apache-2.0
// Each function comes from a source file that includes every header; both must see one program.
void const* first();
void const* second();

int main() { return first() == second() ? 0 : 1; }

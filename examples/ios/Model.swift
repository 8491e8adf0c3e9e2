import Foundation

/// A model that is linked into the app (see README.md).
///
///     let model = try Model()
///     try model.test()
///     let scores: [Int8] = try model.run([pixels], signature: "predict")[0]
///
/// For one thread at a time.
final class Model {
  struct Failure: Error, CustomStringConvertible {
    let description: String
  }

  private let memory: UnsafeMutableRawPointer
  private let model: UnsafeMutablePointer<msedge>

  /// Checks the model. Throws `Failure` for one that is damaged or does not belong to its kernels.
  init() throws {
    var needed = 0
    try Model.check(linked_size(&needed), "")
    memory = UnsafeMutableRawPointer.allocate(byteCount: needed, alignment: 64)
    model = UnsafeMutablePointer<msedge>.allocate(capacity: 1)
    try Model.check(linked_open(model, memory, needed), "")
  }

  deinit {
    model.deallocate()
    memory.deallocate()
  }

  /// Names of the signatures, in their order.
  var signatures: [String] {
    (0..<Int(model.pointee.signature_count)).map { String(cString: model.pointee.signatures[$0].name) }
  }

  /// Runs a signature on arrays in the order of its inputs; returns copies of its outputs as bytes of `Element`.
  func run<Input, Element>(_ inputs: [[Input]], signature: String) throws -> [[Element]] {
    guard let number = signatures.firstIndex(of: signature) else {
      throw Failure(description: "expected a signature of \(signatures), got \(signature)")
    }
    let ports = model.pointee.signatures[number]
    guard inputs.count == Int(ports.input_count) else {
      throw Failure(description: "expected \(ports.input_count) inputs, got \(inputs.count)")
    }
    for (i, input) in inputs.enumerated() {
      let port = ports.inputs[i]
      try input.withUnsafeBytes { bytes in
        guard bytes.count == port.bytes else {
          throw Failure(description: "\(String(cString: port.name)): expected \(port.bytes) bytes, got \(bytes.count)")
        }
        if let start = bytes.baseAddress { port.data.copyMemory(from: start, byteCount: bytes.count) }
      }
    }
    try Model.check(msedge_run(model, UInt32(number)), String(cString: model.pointee.where))
    return (0..<Int(ports.output_count)).map { i in
      let port = ports.outputs[i]
      return Array(UnsafeRawBufferPointer(start: port.data, count: port.bytes).bindMemory(to: Element.self))
    }
  }

  /// Copies of all state: keep them to go on training later.
  var state: [Data] {
    get {
      (0..<Int(model.pointee.state_count)).map { i in
        Data(bytes: model.pointee.states[i].data, count: model.pointee.states[i].bytes)
      }
    }
    set {
      precondition(newValue.map(\.count) == state.map(\.count), "expected state like that of this model")
      for (i, data) in newValue.enumerated() {
        data.withUnsafeBytes { bytes in
          if let start = bytes.baseAddress {
            model.pointee.states[i].data.copyMemory(from: start, byteCount: bytes.count)
          }
        }
      }
    }
  }

  /// Runs every signature's sample, and resets the state. Throws `Failure` for results that differ.
  func test() throws {
    for number in 0..<model.pointee.signature_count {
      try Model.check(msedge_test(model, number), String(cString: model.pointee.where))
    }
  }

  private static func check(_ status: msedge_status, _ place: String) throws {
    if status != MSEDGE_OK {
      throw Failure(description: "\(place.isEmpty ? "" : place + ": ")\(String(cString: msedge_text(status)))")
    }
  }
}
